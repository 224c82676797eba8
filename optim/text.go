package optim

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"tenon.dev/internal/core"
)

// String returns the options of each group in the form in which PyTorch prints an optimizer. It reads nothing from the device.
func (o *optimizer[O]) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s (", cmp.Or(o.name, "Optimizer"))
	for i, g := range o.groups {
		fmt.Fprintf(&b, "\nParameter Group %d\n", i)
		for _, line := range optionLines(reflect.ValueOf(g.opt)) {
			fmt.Fprintf(&b, "    %s\n", line)
		}
	}
	return b.String() + ")"
}

// optionLines returns the options by PyTorch's names, which are those of their JSON, in order.
func optionLines(opt reflect.Value) (lines []string) {
	for i := range opt.NumField() {
		var text string
		switch v := opt.Field(i).Interface().(type) {
		case bool:
			text = core.Truth(v)
		case float64:
			text = optionNumber(v)
		case []float64:
			text = "(" + optionNumber(v[0]) + ", " + optionNumber(v[1]) + ")"
		default:
			text = fmt.Sprint(v)
		}
		lines = append(lines, opt.Type().Field(i).Tag.Get("json")+": "+text)
	}
	slices.Sort(lines)
	return lines
}

// optionNumber formats an option; most that are 0 are a whole number in PyTorch's defaults.
func optionNumber(v float64) string {
	if v == 0 {
		return "0"
	}
	return core.Decimal(v)
}

// ratesText returns the learning rates of o's groups, a single one without brackets.
func ratesText(o Optimizer) string {
	var rates []string
	for i := range o.Groups() {
		rates = append(rates, core.Decimal(o.LR(i)))
	}
	if len(rates) == 1 {
		return rates[0]
	}
	return "[" + strings.Join(rates, " ") + "]"
}
