package cli

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/alecthomas/kong"

	"tenon.dev/fault"
)

// statusUsage is the exit status for an invalid command line; memcheck has its own statuses.
const statusUsage = 2

// misused returns the error of an invalid command line.
func misused(format string, args ...any) error {
	return &exitError{statusUsage, fault.New(fault.Invalid, format, args...)}
}

// The parser's messages whose parts usageError needs.
var (
	guessText    = regexp.MustCompile(`^(.*), did you mean (.*)\?$`)
	unknownText  = regexp.MustCompile(`^unknown flag (\S+)$`)
	extraText    = regexp.MustCompile(`^unexpected argument (.*)$`)
	chooseText   = regexp.MustCompile(`^expected one of (.*)$`)
	needsText    = regexp.MustCompile(`^(?:expected "(.*)"|missing positional arguments (.*))$`)
	enumText     = regexp.MustCompile(`^(\S+) must be one of (.*) but got "(.*)"$`)
	otherText    = regexp.MustCompile(`^flag (\S+) applies to the default command "(.*)", not "(.*)"$`)
	noValueText  = regexp.MustCompile(`^(\S+): (?:expected .* value but got "EOL"|missing value)`)
	dashText     = regexp.MustCompile(`^(\S+): expected .* value but got "(-.*)" \((?:short|long) flag\)`)
	intText      = regexp.MustCompile(`^(\S+): expected (?:an int|a valid \d+ bit u?int) but got "(.*)"`)
	floatText    = regexp.MustCompile(`^(\S+): expected a float but got "(.*)"`)
	boolText     = regexp.MustCompile(`^(\S+): bool value must be .* but got "(.*)"$`)
	absentText   = regexp.MustCompile(`^(\S+): stat (.*): no such file or directory$`)
	folderText   = regexp.MustCompile(`^(\S+): "(.*)" exists but is a directory$`)
	noFolderText = regexp.MustCompile(`^(\S+): "(.*)" exists but is not a directory$`)
)

// usageError says in our own words what is wrong with a command line. It keeps the parser's text for messages that our flags and
// arguments cannot cause.
func usageError(err error) error {
	command, leaf := "", false
	var e *kong.ParseError
	if errors.As(err, &e) {
		for _, p := range e.Context.Path {
			if p.Command != nil {
				command, leaf = command+p.Command.Name+" ", p.Command.Leaf()
			}
		}
	}
	text, guess := err.Error(), ""
	if m := guessText.FindStringSubmatch(text); m != nil {
		text, guess = m[1], likely(m[1], m[2])
	}
	help := fmt.Sprintf("; see \"tenon %s--help\"", command)
	if guess != "" {
		help = fmt.Sprintf("; did you mean %s?", guess)
	}
	is := func(pattern *regexp.Regexp) []string { return pattern.FindStringSubmatch(text) }
	if m := is(unknownText); m != nil {
		return misused("%sthere is no flag %s%s", in(command), m[1], help)
	}
	if m := is(extraText); m != nil {
		if leaf {
			return misused("%sthere is an argument too many: %q%s", in(command), m[1], help)
		}
		return misused("%sthere is no command %q%s", in(command), m[1], help)
	}
	if m := is(chooseText); m != nil {
		return misused("%sa command is missing: give %s", in(command), choice(m[1]))
	}
	if m := is(needsText); m != nil {
		return misused("%san argument is missing: give %s%s", in(command), m[1]+m[2], help)
	}
	if m := is(otherText); m != nil {
		return misused("%sthe flag %s belongs to the command %s, not to %s", in(command), m[1], m[2], m[3])
	}
	if said := valueError(is); said != "" {
		return misused("%s", said)
	}
	return misused("%s%s", err, help)
}

// likely returns those of the parser's guesses that begin like the mistake at the end of its text. The parser considers "--fast" close to
// "--list", and any short flag close to "-h".
func likely(text, guesses string) string {
	mistake := strings.TrimLeft(text[strings.LastIndexByte(text, ' ')+1:], "-")
	var kept []string
	for _, g := range strings.Split(strings.TrimPrefix(guesses, "one of "), ", ") {
		if name := strings.TrimLeft(g, `"-`); mistake != "" && name[0] == mistake[0] && g != `"-h"` {
			kept = append(kept, g)
		}
	}
	return strings.Join(kept, " or ")
}

// in names the command that an error is about: "memviz stats: ".
func in(command string) string {
	if command == "" {
		return ""
	}
	return strings.TrimSuffix(command, " ") + ": "
}

// valueError returns the sentence about the value of a flag, or "".
func valueError(is func(*regexp.Regexp) []string) string {
	for _, c := range []struct {
		pattern *regexp.Regexp
		ours    func(flag, value string) string
	}{
		{noValueText, func(flag, _ string) string { return flag + " needs a value" }},
		{dashText, func(flag, value string) string {
			return fmt.Sprintf("%s needs a value, and %s reads as a flag; a value that begins with a dash is written %s=%s", flag,
				value, flag, value)
		}},
		{intText, func(flag, value string) string { return fmt.Sprintf("%s is %q; give a whole number", flag, value) }},
		{floatText, func(flag, value string) string { return fmt.Sprintf("%s is %q; give a number", flag, value) }},
		{boolText, func(flag, value string) string {
			return fmt.Sprintf("%s is %q; give the flag without a value", flag, value)
		}},
		{absentText, func(flag, value string) string {
			return fmt.Sprintf("%s: there is no %s; name one that exists", flag, value)
		}},
		{folderText, func(flag, value string) string { return fmt.Sprintf("%s: %s is a folder; name a file", flag, value) }},
		{noFolderText, func(flag, value string) string { return fmt.Sprintf("%s: %s is a file; name a folder", flag, value) }},
	} {
		if m := is(c.pattern); m != nil {
			return c.ours(m[1], m[len(m)-1])
		}
	}
	if m := is(enumText); m != nil {
		return fmt.Sprintf("%s is %q; give %s", m[1], m[3], choice(m[2]))
	}
	return ""
}

// choice turns `"a","b", "c"` into "a, b or c".
func choice(list string) string {
	words := strings.Split(strings.ReplaceAll(strings.ReplaceAll(list, `"`, ""), " ", ""), ",")
	last := len(words) - 1
	if last == 0 {
		return words[0]
	}
	return strings.Join(words[:last], ", ") + " or " + words[last]
}
