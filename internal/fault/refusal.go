package fault

import "fmt"

// Refusal collects every reason before anybody is told of one. The zero value has none.
// Not safe for concurrent use.
type Refusal struct {
	Reasons []Reason
	kinds   map[Kind]bool
}

// Add notes reasons, all of one kind.
func (r *Refusal) Add(kind Kind, reasons ...Reason) {
	if r.kinds == nil {
		r.kinds = map[Kind]bool{}
	}
	if len(reasons) > 0 {
		r.kinds[kind] = true
		r.Reasons = append(r.Reasons, reasons...)
	}
}

// Take adds a refusal's reasons, and gives back an error that is none.
func (r *Refusal) Take(err error) error {
	if err == nil {
		return nil
	}
	switch kind := KindOf(err); kind {
	case Forbidden, DoesNotFit, Exists, Invalid, NotFound, Busy:
		reasons := ReasonsOf(err)
		if len(reasons) == 0 {
			reasons = []Reason{{Code: string(kind), Message: err.Error()}}
		}
		r.Add(kind, reasons...)
		return nil
	}
	return err
}

// Err is nil without reasons. Of several kinds the one that is hardest to change
// names the whole.
func (r *Refusal) Err(format string, args ...any) error {
	for _, kind := range []Kind{Invalid, Forbidden, DoesNotFit, NotFound, Exists, Busy} {
		if r.kinds[kind] {
			return Refuse(kind, fmt.Sprintf(format, args...), r.Reasons...)
		}
	}
	return nil
}
