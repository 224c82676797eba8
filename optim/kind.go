package optim

import (
	"fmt"
	"slices"
	"strings"

	"tenon.dev/torchfile"
)

// kind returns the optimizer's name.
func (o *optimizer[O]) kind() string { return o.name }

// sign is an option that only some optimizers have.
type sign struct {
	option string
	kinds  []string
}

// signs tell which optimizers a group of a PyTorch file is of: the first of these options that it has. There is none for Adamax, whose
// options other optimizers had too in earlier versions.
var signs = []sign{
	{"dampening", []string{"SGD"}},
	{"amsgrad", []string{"Adam", "AdamW"}},
	{"momentum_decay", []string{"NAdam"}},
	{"decoupled_weight_decay", []string{"RAdam"}},
	{"rho", []string{"Adadelta"}},
	{"lr_decay", []string{"Adagrad"}},
	{"lambd", []string{"ASGD"}},
	{"alpha", []string{"RMSprop"}},
	{"etas", []string{"Rprop"}},
}

// kindsOf returns the optimizers that a group of a file may be of, or none if that is not known.
func kindsOf(group any) []string {
	g, ok := group.(*torchfile.Dict)
	if !ok {
		return nil
	}
	for _, s := range signs {
		if slices.Contains(g.Keys, any(s.option)) {
			return s.kinds
		}
	}
	return nil
}

// wrongKind is the error of a file that is of one of kinds where the program has the optimizer name.
func wrongKind(kinds []string, name string) error {
	for _, k := range kinds {
		if k != "Adamax" && !slices.ContainsFunc(signs, func(s sign) bool { return slices.Contains(s.kinds, k) }) {
			return fmt.Errorf("the file is of the optimizer %q, which is none of package optim; load only the model and begin with a "+
				"new %s", k, name)
		}
	}
	return fmt.Errorf("the file is of the optimizer %s, this is %s; make it with New%s, or load only the model and begin with a new %s",
		strings.Join(kinds, " or "), name, strings.Join(kinds, " or New"), name)
}
