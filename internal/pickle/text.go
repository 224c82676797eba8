package pickle

import (
	"bytes"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"

	"tenon.dev/fault"
)

// text executes the instructions of protocol 0, whose arguments are lines of text, and refuses unknown instructions.
func (m *machine) text(op byte) error {
	switch op {
	case opList:
		return m.gather(KindList)
	case opDict:
		return m.gather(KindDict)
	case opInt, opLong, opFloat, opString, opUnicode, opGet, opPut:
	default:
		m.src.at--
		if m.src.offset() == 0 {
			return fault.New(fault.Invalid, "the file is not a pickle: it begins with byte %#02x", op)
		}
		return m.broken("%#02x is not an instruction", op)
	}
	b, err := m.src.line()
	if err != nil {
		return err
	}
	switch op {
	case opGet, opPut:
		i, err := strconv.ParseUint(string(b), 10, 32)
		if err != nil {
			return m.broken("%q is not a memo index", clip(b))
		}
		if op == opGet {
			return m.get(uint32(i))
		}
		return m.put(uint32(i))
	case opFloat:
		f, err := strconv.ParseFloat(string(b), 64)
		if err != nil && !strings.Contains(err.Error(), "range") {
			return m.broken("%q is not a float", clip(b))
		}
		return m.pushFloat(f)
	case opString:
		s, ok := unquote(b)
		if !ok {
			return m.broken("%q is not a quoted string", clip(b))
		}
		return m.pushText(s)
	case opUnicode:
		return m.pushText(unescape(b))
	}
	return m.textInt(op, b)
}

func (m *machine) textInt(op byte, b []byte) error {
	if op == opInt && (string(b) == "00" || string(b) == "01") {
		return m.push(pack(KindBool, uint64(b[1]-'0')))
	}
	b = bytes.TrimSuffix(b, []byte("L"))
	if len(b) > maxInt {
		return fault.New(fault.Unsupported, "the pickle has an integer of %d digits at byte %d; %d can be read", len(b),
			m.src.offset(), maxInt)
	}
	v, ok := new(big.Int).SetString(string(b), 10)
	if !ok {
		return m.broken("%q is not an integer", clip(b))
	}
	return m.pushBig(v)
}

// clip shortens text for an error.
func clip(b []byte) []byte { return b[:min(len(b), 40)] }

// unquote reads Python 2's notation of a byte string.
func unquote(b []byte) ([]byte, bool) {
	if len(b) < 2 || b[0] != b[len(b)-1] || b[0] != '\'' && b[0] != '"' {
		return nil, false
	}
	b = b[1 : len(b)-1]
	if bytes.IndexByte(b, '\\') < 0 {
		return b, true
	}
	var out []byte
	for i := 0; i < len(b); i++ {
		if b[i] != '\\' {
			out = append(out, b[i])
			continue
		}
		if i++; i == len(b) {
			return nil, false
		}
		switch b[i] {
		case 'n':
			out = append(out, '\n')
		case 't':
			out = append(out, '\t')
		case 'r':
			out = append(out, '\r')
		case '\\', '\'', '"':
			out = append(out, b[i])
		case 'x':
			if i+2 >= len(b) {
				return nil, false
			}
			n, err := strconv.ParseUint(string(b[i+1:i+3]), 16, 8)
			if err != nil {
				return nil, false
			}
			out = append(out, byte(n))
			i += 2
		default:
			return nil, false
		}
	}
	return out, true
}

// unescape reads Python's raw-unicode-escape: Latin-1 with \uXXXX and \UXXXXXXXX.
func unescape(b []byte) []byte {
	var out []byte
	for i := 0; i < len(b); i++ {
		digits := 0
		if b[i] == '\\' && i+1 < len(b) {
			switch b[i+1] {
			case 'u':
				digits = 4
			case 'U':
				digits = 8
			}
		}
		if digits > 0 && i+2+digits <= len(b) {
			if n, err := strconv.ParseUint(string(b[i+2:i+2+digits]), 16, 31); err == nil {
				out = utf8.AppendRune(out, rune(n))
				i += 1 + digits
				continue
			}
		}
		out = utf8.AppendRune(out, rune(b[i]))
	}
	return out
}
