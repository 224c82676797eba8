package recorded

import (
	"encoding/json"
	"fmt"
	"strings"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/safetensors"
)

// DigitsRun is the training run of the small convolutional network on handwritten digits: conv 1→16 3×3 pad 1, ReLU, conv 16→32 3×3 pad 1,
// ReLU, max-pool 2, flatten, linear 512→64, ReLU, linear 64→10; Adam with learning rate 1e-3, cross-entropy, float32.
type DigitsRun struct {
	// Init holds the initial parameters by name, such as "0.weight".
	Init map[string]*Tensor
	// Batches holds the row numbers of each step's batch, within the training rows.
	Batches [][]int64
	// Losses holds each step's loss, before its update.
	Losses []float64
	// TestAccuracy holds the accuracies on the test rows after 20 epochs, for seeds 0 to 4, as fractions.
	TestAccuracy []float64
	// Peaks holds the memory needed by programs, by the program's name.
	Peaks map[string]Peak
}

// Peak is the memory of one program, in bytes, which was run several times.
type Peak struct {
	// Base is what was allocated before the first run.
	Base int64 `json:"base"`
	// Runs holds for each run the peak allocated, the amount allocated before it, and the peak requested.
	Runs [][3]int64 `json:"runs"`
}

// Above returns the most that any run needed above what was allocated before it.
func (p Peak) Above() int64 {
	most := int64(0)
	for _, r := range p.Runs {
		most = max(most, r[0]-r[1])
	}
	return most
}

// OpenDigitsRun reads a recorded run.
func OpenDigitsRun(name string) (run *DigitsRun, err error) {
	f, err := safetensors.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var meta struct {
		Losses       []float64
		TestAccuracy []float64 `json:"test_accuracy_seeds_0_4"`
		Peaks        map[string]Peak
	}
	if err := json.Unmarshal([]byte(f.Metadata()["meta"]), &meta); err != nil {
		return nil, fault.Wrap(fault.Invalid, err, "the metadata of %s lack the run's figures", name)
	}
	run = &DigitsRun{Init: map[string]*Tensor{}, Losses: meta.Losses, TestAccuracy: meta.TestAccuracy, Peaks: meta.Peaks}
	for _, info := range f.Infos() {
		param, ok := strings.CutPrefix(info.Name, "init.")
		if !ok {
			continue
		}
		t := &Tensor{DType: info.DType, TypeName: info.DType.String(), Shape: info.Shape, Strides: rowMajor(info.Shape)}
		if t.Data, err = f.Read(info.Name); err != nil {
			return nil, err
		}
		run.Init[param] = t
	}
	for step := range run.Losses {
		key := fmt.Sprintf("batch.%d", step)
		info, err := f.Lookup(key)
		if err != nil {
			return nil, err
		}
		if info.DType != dtype.Int64 {
			return nil, invalid("%s of %s is %v, not int64", key, name, info)
		}
		b := &Tensor{DType: info.DType, Shape: info.Shape}
		if b.Data, err = f.Read(key); err != nil {
			return nil, err
		}
		rows := make([]int64, b.Elements())
		for i := range rows {
			rows[i] = b.Int(i)
		}
		run.Batches = append(run.Batches, rows)
	}
	return run, nil
}
