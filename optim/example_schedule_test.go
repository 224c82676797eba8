package optim_test

import (
	"encoding/json"
	"fmt"
	"log"

	"tenon.dev"
	"tenon.dev/nn"
	"tenon.dev/optim"
)

// parameter returns the parameters of a module with one parameter.
func parameter(x *tenon.Exec) func(yield func(string, *nn.Param) bool) {
	p := nn.NewParam(tenon.From(x, []float32{3}))
	return func(yield func(string, *nn.Param) bool) { yield("w", p) }
}

// The learning rate rises for five steps and falls along a cosine. The schedule's step comes after the optimizer's.
func ExampleNewSchedule() {
	x, err := tenon.Open(tenon.CPU())
	if err != nil {
		log.Fatal(err)
	}
	sgd, err := optim.NewSGD(parameter(x), optim.SGDOpt{LR: 0.1})
	if err != nil {
		log.Fatal(err)
	}
	defer sgd.Close()
	schedule, err := optim.NewSchedule(sgd, optim.SequentialLR([]int{5}, optim.LinearLR(0.1, 1, 5), optim.CosineAnnealingLR(10)))
	if err != nil {
		log.Fatal(err)
	}
	for range 15 {
		fmt.Printf("%.3f ", sgd.LR(0))
		if err := sgd.Step(x); err != nil {
			log.Fatal(err)
		}
		if err := schedule.Step(); err != nil {
			log.Fatal(err)
		}
	}
	// Output: 0.010 0.028 0.046 0.064 0.082 0.100 0.098 0.090 0.079 0.065 0.050 0.035 0.021 0.010 0.002
}

// A checkpoint holds the schedule's state, so training resumes as if it had not stopped.
func ExampleSchedule_SetState() {
	x, err := tenon.Open(tenon.CPU())
	if err != nil {
		log.Fatal(err)
	}
	start := func() (*optim.AdamW, *optim.Schedule) {
		adamw, err := optim.NewAdamW(parameter(x))
		if err != nil {
			log.Fatal(err)
		}
		schedule, err := optim.NewSchedule(adamw, optim.OneCycleLR([]float64{0.1}, 100))
		if err != nil {
			log.Fatal(err)
		}
		return adamw, schedule
	}
	_, schedule := start()
	for range 29 {
		if err := schedule.Step(); err != nil {
			log.Fatal(err)
		}
	}
	state, err := schedule.State()
	if err != nil {
		log.Fatal(err)
	}
	checkpoint, err := json.Marshal(state)
	if err != nil {
		log.Fatal(err)
	}

	var saved optim.ScheduleState
	if err := json.Unmarshal(checkpoint, &saved); err != nil {
		log.Fatal(err)
	}
	adamw, schedule := start()
	fmt.Printf("rate %.3f, momentum %.2f\n", adamw.LR(0), adamw.Momentum(0))
	if err := schedule.SetState(saved); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("rate %.3f, momentum %.2f\n", adamw.LR(0), adamw.Momentum(0))
	// Output:
	// rate 0.004, momentum 0.95
	// rate 0.100, momentum 0.85
}

// The rate halves after two epochs without a better loss.
func ExampleReduceLROnPlateau() {
	x, err := tenon.Open(tenon.CPU())
	if err != nil {
		log.Fatal(err)
	}
	sgd, err := optim.NewSGD(parameter(x), optim.SGDOpt{LR: 0.1})
	if err != nil {
		log.Fatal(err)
	}
	defer sgd.Close()
	plateau, err := optim.NewReduceLROnPlateau(sgd, 1, optim.PlateauOpt{Factor: 0.5})
	if err != nil {
		log.Fatal(err)
	}
	for _, loss := range []float64{0.9, 0.5, 0.4, 0.4, 0.41, 0.3} {
		if err := plateau.Step(loss); err != nil {
			log.Fatal(err)
		}
		fmt.Print(sgd.LR(0), " ")
	}
	// Output: 0.1 0.1 0.1 0.1 0.05 0.05
}
