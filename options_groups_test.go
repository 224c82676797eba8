package tenon_test

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	"tenon.dev"
	"tenon.dev/internal/testdevice"
	"tenon.dev/nn"
	"tenon.dev/optim"
	"tenon.dev/torchfile"
)

// setOption sets an option of an optimizer to a number that its defaults do not have; scale tells several such settings apart.
func setOption(v reflect.Value, name string, scale float64) {
	switch {
	case v.Kind() == reflect.Bool:
		v.SetBool(true)
	case name == "Dampening": // Nesterov's momentum refuses others
		v.Set(reflect.ValueOf(0))
	case name == "Betas":
		v.Set(reflect.ValueOf([]float64{0.3 * scale, 0.6 * scale}))
	case v.Kind() == reflect.Slice:
		v.Set(reflect.ValueOf([]float64{0.3 * scale, 1.5 * scale}))
	default:
		v.Set(reflect.ValueOf(0.25 * scale))
	}
}

// optionsOfGroups returns the options of an optimizer's groups as its state dict has them.
func optionsOfGroups(t *testing.T, x *tenon.Exec, o optim.Optimizer) (groups []map[string]string) {
	t.Helper()
	d, err := optim.StateDict(x, o)
	must(t, err)
	list, _ := d.Get("param_groups")
	for _, g := range list.([]any) {
		options := map[string]string{}
		d := g.(*torchfile.Dict)
		for i, key := range d.Keys {
			if key != "params" {
				options[key.(string)] = fmt.Sprint(d.Values[i])
			}
		}
		groups = append(groups, options)
	}
	return groups
}

// A group that is added later has the constructor's options, except those that Add gives, as in PyTorch.
func TestGroupsInheritOptions(t *testing.T) {
	x := testdevice.Open(t, tenon.CPU())
	for _, constructors := range zeroOptimizers {
		for _, f := range constructors {
			inheritsOptions(t, x, reflect.ValueOf(f))
		}
	}
}

func inheritsOptions(t *testing.T, x *tenon.Exec, f reflect.Value) {
	param := func() reflect.Value { return reflect.ValueOf(theseParams(nn.NewParam(float64s(x, 1)))) }
	typ := f.Type().In(1).Elem()
	opt := reflect.New(typ).Elem()
	for i := range typ.NumField() {
		setOption(opt.Field(i), typ.Field(i).Name, 1)
	}
	out := f.Call([]reflect.Value{param(), opt})
	if err, _ := out[1].Interface().(error); err != nil {
		t.Fatalf("%v: %v", typ, err)
	}
	add := func(opts ...reflect.Value) {
		t.Helper()
		if err, _ := out[0].MethodByName("Add").Call(append([]reflect.Value{param()}, opts...))[0].Interface().(error); err != nil {
			t.Fatalf("%v: %v", typ, err)
		}
	}
	o := out[0].Interface().(optim.Optimizer)
	defer o.Close()
	add()
	differs := []string{""}
	for i := range typ.NumField() {
		field := typ.Field(i)
		if field.Type.Kind() == reflect.Bool || field.Name == "Dampening" {
			continue
		}
		one := reflect.New(typ).Elem()
		setOption(one.Field(i), field.Name, 0.9)
		add(one)
		differs = append(differs, field.Tag.Get("json"))
	}
	groups := optionsOfGroups(t, x, o)
	for i, differ := range differs {
		var got []string
		for key, v := range groups[1+i] {
			if v != groups[0][key] {
				got = append(got, key)
			}
		}
		if want := slices.DeleteFunc([]string{differ}, func(s string) bool { return s == "" }); !slices.Equal(got, want) {
			t.Errorf("%v: Add with %q gives %v, where the first group has %v", typ, want, groups[1+i], groups[0])
		}
	}
}

// What changed the first group since, such as a schedule, is not inherited; 0 is, and so is the default of the constructor.
func TestGroupsInheritOnlyTheConstructors(t *testing.T) {
	x := testdevice.Open(t, tenon.CPU())
	w := func() *nn.Param { return nn.NewParam(float64s(x, 1)) }
	adamw, err := optim.NewAdamW(theseParams(w()), optim.AdamOpt{LR: 0.5, WeightDecay: 0})
	must(t, err)
	defer adamw.Close()
	adamw.SetLR(0, 0.125)
	must(t, adamw.Add(theseParams(w())))
	if lr := adamw.LR(1); lr != 0.5 {
		t.Errorf("the added group has the rate %v, not the constructor's 0.5", lr)
	}
	if g := optionsOfGroups(t, x, adamw)[1]; g["weight_decay"] != "0" || g["eps"] != "1e-08" {
		t.Errorf("the added group has the options %v", g)
	}
	betas := []float64{0.5, 0.75}
	adam, err := optim.NewAdam(theseParams(w()), optim.AdamOpt{Betas: betas})
	must(t, err)
	defer adam.Close()
	betas[0] = 0.125
	adam.SetMomentum(0, 0.25)
	must(t, adam.Add(theseParams(w())))
	if a, b := adam.Momentum(0), adam.Momentum(1); a != 0.25 || b != 0.5 {
		t.Errorf("the groups have the momenta %v and %v, want the one that was set and the constructor's", a, b)
	}
	sgd, err := optim.NewSGD(theseParams(w()), optim.SGDOpt{Momentum: 0.5, Nesterov: true})
	must(t, err)
	defer sgd.Close()
	if err := sgd.Add(theseParams(w()), optim.SGDOpt{Momentum: 0}); err == nil {
		t.Error("the inherited Nesterov passes without momentum")
	}
}
