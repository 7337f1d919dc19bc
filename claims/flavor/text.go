package flavor

import (
	"math"
	"strings"
)

// integer reads a whole number as Python's int() does. Numbers that an int64
// does not hold become its ends: every use is bounded far below them.
func integer(text string) (n int64, ok bool) {
	text = strings.TrimSpace(text)
	negative := strings.HasPrefix(text, "-")
	if negative || strings.HasPrefix(text, "+") {
		text = text[1:]
	}
	digit := false // whether the byte before was one
	for _, c := range []byte(text) {
		switch {
		case c >= '0' && c <= '9':
			digit = true
			d := int64(c - '0')
			if n > (math.MaxInt64-d)/10 {
				n = math.MaxInt64
			} else {
				n = n*10 + d
			}
		case c == '_' && digit:
			digit = false
		default:
			return 0, false
		}
	}
	if !digit { // nothing, or an underscore at the end
		return 0, false
	}
	if negative {
		n = -n
	}
	return n, true
}

// plainInteger reads a whole number that is written the one way Python prints
// it: no sign but a minus, no blanks, no zeros in front (oslo.utils
// is_int_like).
func plainInteger(text string) (n int64, ok bool) {
	digits := strings.TrimPrefix(text, "-")
	if digits == "" || strings.Trim(digits, "0123456789") != "" ||
		digits[0] == '0' && text != "0" {
		return 0, false
	}
	return integer(text)
}

// boolean reads a word as oslo.utils bool_from_string does. Of words it does
// not know, which count as false there, ok is false.
func boolean(text string) (yes, ok bool) {
	switch strings.ToLower(strings.TrimSpace(text)) {
	case "1", "t", "true", "on", "y", "yes":
		return true, true
	case "0", "f", "false", "off", "n", "no":
		return false, true
	}
	return false, false
}
