package options

import (
	"maps"
	"slices"
	"strings"
	"time"

	"berth/internal/fault"
)

// Layer is what one of those says that are asked.
type Layer struct {
	From From
	Live Live
}

// Merge gives of each option what the first layer says that says it, with Default as the
// last, and for each option by its name in JSON who said it: the request first, then the
// flavor, then the configuration. Of what the configuration says as it would be anyway
// nobody is the author. Options that nobody said, and that have no default, stay zero and
// are not in the map; NoRate, NoTime and "none" have become zero, and are.
//
// Where what one layer says excludes what a later one does, the first one's word stands and
// the other's is as if it had not been said: a request that asks for xbzrle does not fail of
// the parallel connections of the configuration. What one layer says at odds with itself is
// left as it is, for Validate to refuse.
func Merge(layers ...Layer) (Live, map[string]From) {
	layers = slices.Clone(layers)
	gone := map[string]bool{} // words that were taken out
	for {
		out, from := overlay(layers)
		if !yield(layers, out, from, gone) {
			return out, from
		}
	}
}

func overlay(layers []Layer) (Live, map[string]From) {
	var out Live
	from := map[string]From{}
	for _, o := range table {
		said := Layer{FromDefault, Default()}
		if at := slices.IndexFunc(layers, func(l Layer) bool { return o.said(l.Live) }); at >= 0 {
			said = layers[at]
		}
		if !o.said(said.Live) {
			continue
		}
		from[o.Name] = said.From
		if said.From == FromConfig && o.Text(said.Live) == o.Text(Default()) {
			from[o.Name] = FromDefault
		}
		o.take(&out, said.Live)
	}
	return out, from
}

// yield takes out of the layers one word that one before it excludes, or that has lost its
// sense with such a word, and reports whether there was one.
func yield(layers []Layer, merged Live, from map[string]From, gone map[string]bool) bool {
	for _, c := range conflicts(merged) {
		first, last, loser, bereft := len(layers), -1, "", false
		for _, name := range c.names {
			bereft = bereft || gone[name]
			at := slices.IndexFunc(layers, func(l Layer) bool { return from[name] == l.From })
			if at < 0 {
				continue // nobody's word
			}
			if first = min(first, at); at > last {
				last, loser = at, name
			}
		}
		if last < 0 || last == first && !bereft {
			continue
		}
		if c.mend != nil && loser == "schedule" {
			c.mend(&layers[last].Live)
			return true
		}
		o, _ := Find(loser)
		o.take(&layers[last].Live, Live{})
		gone[loser] = true
		return true
	}
	return false
}

// take copies the option, and makes nothing of none.
func (o Option) take(to *Live, from Live) {
	switch v := o.at(to).(type) {
	case *uint64:
		if *v = *o.at(&from).(*uint64); *v == NoRate && o.None {
			*v = 0
		}
	case *time.Duration:
		if *v = *o.at(&from).(*time.Duration); *v == NoTime && o.None {
			*v = 0
		}
	case *int:
		*v = *o.at(&from).(*int)
	case *Switch:
		*v = *o.at(&from).(*Switch)
	case *Action:
		*v = *o.at(&from).(*Action)
	case *[]string:
		if *v = slices.Clone(*o.at(&from).(*[]string)); slices.Equal(*v, []string{methodNone}) {
			*v = nil
		}
	case *string:
		if *v = *o.at(&from).(*string); *v == "none" && o.None {
			*v = ""
		}
	}
}

// Drop takes options, by their names in JSON, out of what was merged, as if nobody had said
// them.
func Drop(l Live, from map[string]From, names ...string) (Live, map[string]From) {
	from = maps.Clone(from)
	var none Live
	for _, o := range table {
		if slices.Contains(names, o.Name) {
			o.take(&l, none)
			delete(from, o.Name)
		}
	}
	return l, from
}

// Offline keeps of merged options what counts for a guest that is off: the bandwidth.
func Offline(l Live, from map[string]From) (Live, map[string]From) {
	var names []string
	for _, o := range table {
		if o.Name != "bandwidth_bytes" {
			names = append(names, o.Name)
		}
	}
	return Drop(l, from, names...)
}

// OfGuestsThatRun are the options that somebody has said and that have no meaning for a guest
// that is off, by their words on the command line.
func OfGuestsThatRun(l Live) []string {
	var out []string
	for _, o := range table {
		if o.Name != "bandwidth_bytes" && o.said(l) {
			out = append(out, o.Flag)
		}
	}
	return out
}

// specSpace begins all extra specs that are Berth's own.
const specSpace = "berth:"

// FromSpecs reads a flavor's extra specs. Of Berth's own ("berth:") every one must be an
// option; of others nothing is said. What is wrong is in the reasons, Have being the extra
// spec; the options that are right are given all the same.
func FromSpecs(specs map[string]string) (Live, []fault.Reason) {
	var out Live
	var reasons []fault.Reason
	for _, spec := range slices.Sorted(maps.Keys(specs)) {
		if !strings.HasPrefix(spec, specSpace) {
			continue
		}
		at := slices.IndexFunc(table[:], func(o Option) bool { return SpecPrefix+o.Key == spec })
		if at < 0 {
			reasons = append(reasons, fault.Reason{
				Code: "extra_spec_unknown", Message: "no such extra spec", Have: spec, Change: "see docs/live-migration-options.md for its spelling, or remove it",
			})
			continue
		}
		if want := table[at].set(&out, specs[spec]); want != "" {
			reasons = append(reasons, fault.Reason{
				Code: "extra_spec_value", Message: quote(specs[spec]) + ": want " + want, Have: spec, Want: want, Change: "correct " + spec,
			})
		}
	}
	return out, reasons
}
