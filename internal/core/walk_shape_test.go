package core

import (
	"errors"

	"tenon.dev/dtype"
)

func init() {
	programs = append(programs,
		program{name: "To", recovered: []string{"EventCreate", "EventRecord", "HostAlloc"}, run: func(x *Exec) error {
			var read error
			err := Try(func() {
				host := x.Host()
				for _, opt := range []ToOpt{{}, {NonBlocking: true}} {
					a := x.To(ones(host, 3, 4), opt)
					back := host.To(x.Transpose(a, 0, 1), opt)
					_, err := Read[float32](host, back)
					read = errors.Join(read, err)
					host.To(a, opt).Close() // before it has arrived; its memory is freed later if an event fails
					read = errors.Join(read, x.Synchronize())
				}
			})
			return errors.Join(err, read)
		}},
		program{name: "Train", run: func(x *Exec) (err error) {
			if e := Try(func() {
				in, mean, variance := ones(x, 2, 2, 2).SetRequiresGrad(true), x.Zeros([]int{2}, dtype.Float32), ones(x, 2)
				y := x.BatchNorm(in, nil, nil, mean, variance, BatchNormOpt{Training: true})
				y = x.Flatten(x.MaxPool2d(y, [2]int{1, 2}, MaxPoolOpt{}), 1, -1)
				index := x.Zeros([]int{2}, dtype.Int64)
				err = x.Backward(x.CrossEntropy(y, index, CrossEntropyOpt{}), BackwardOpt{})
			}); e != nil {
				return e
			}
			return err
		}})
}
