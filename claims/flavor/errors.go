package flavor

import (
	"fmt"
	"strconv"
	"strings"
)

// Error is one fault of a flavor, an image or an alias.
type Error struct {
	Key     string `json:"key"`            // the extra spec, image property, flavor field or alias at fault
	Code    string `json:"code"`           // stable, snake_case: "numa_nodes_invalid"
	Message string `json:"message"`        // what is wrong and what is wanted, in an operator's words
	Nova    string `json:"nova,omitempty"` // the class that Nova raises, "InvalidNUMANodesNumber"; "" where Nova accepts it
}

// Error gives "hw:numa_nodes: …".
func (e Error) Error() string { return e.Key + ": " + e.Message }

// Errors are all faults found, in the order in which Nova looks for them: the
// first is the one that Nova raises. It is never empty as an error.
type Errors []Error

// Error joins the faults on one line.
func (e Errors) Error() string {
	texts := make([]string, len(e))
	for i := range e {
		texts[i] = e[i].Error()
	}
	return strings.Join(texts, "; ")
}

// Unwrap gives each fault to errors.As and errors.Is.
func (e Errors) Unwrap() []error {
	out := make([]error, len(e))
	for i := range e {
		out[i] = e[i]
	}
	return out
}

// orNil is e as an error: a nil interface when there is no fault.
func (e Errors) orNil() error {
	if len(e) == 0 {
		return nil
	}
	return e
}

// fault notes a fault. The format's text follows the key.
func (r *reader) fault(key, code, nova, format string, args ...any) {
	r.errs = append(r.errs, Error{Key: key, Code: code, Nova: nova, Message: fmt.Sprintf(format, args...)})
}

// quote quotes a value for a message, shortened where somebody sent a book.
func quote(text string) string {
	const most = 60
	if len(text) > most {
		return strconv.Quote(strings.ToValidUTF8(text[:most], "")) + "…"
	}
	return strconv.Quote(text)
}
