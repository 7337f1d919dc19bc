package placement

import (
	"encoding/json"
	"slices"
	"strconv"

	pc "berth/placementclient"
)

// oneProviderATree leaves the candidates that a client without nested providers
// (below 1.29) can use.
func oneProviderATree(options []option) []option {
	return slices.DeleteFunc(options, func(o option) bool {
		providers, roots := map[string]bool{}, map[string]bool{}
		for _, a := range o.parts {
			providers[a.p.UUID], roots[a.p.Root] = true, true
		}
		return len(providers) != len(roots)
	})
}

// encoded is a body that is JSON already. Candidates are written down as text at
// once: of a thousand hosts they are half a megabyte, and to build them from maps
// took several times as long as to find them.
type encoded []byte

// candidatesJSON is the whole body.
func (t *tx) candidatesJSON(options []option, groups []*group, v pc.Microversion) encoded {
	w := &jsonWriter{b: make([]byte, 0, 512*(len(options)+1))} // near enough to what flat hosts take
	w.open('{')
	w.key("allocation_requests")
	w.open('[')
	for _, o := range options {
		w.request(o, v)
	}
	w.close(']')
	w.key("provider_summaries")
	t.summaries(w, options, groups, v)
	w.close('}')
	return w.b
}

// request writes one candidate.
func (w *jsonWriter) request(o option, v pc.Microversion) {
	w.open('{')
	w.key("allocations")
	if v < 12 {
		w.open('[')
	} else {
		w.open('{')
	}
	for i, a := range o.parts {
		first := slices.IndexFunc(o.parts, func(b part) bool { return b.p == a.p })
		if first < i {
			continue // written with the first of its provider
		}
		if v < 12 {
			w.open('{')
			w.key("resource_provider")
			w.open('{')
			w.key("uuid")
			w.text(a.p.UUID)
			w.close('}')
		} else {
			w.key(a.p.UUID)
			w.open('{')
		}
		w.key("resources")
		w.open('{')
		for j, b := range o.parts[i:] {
			same := func(c part) bool { return c.p == b.p && c.class == b.class }
			if b.p != a.p || slices.IndexFunc(o.parts[i:], same) < j {
				continue
			}
			n := int64(0)
			for _, c := range o.parts[i:] {
				if same(c) {
					n += c.n
				}
			}
			w.key(b.class)
			w.number(n)
		}
		w.close('}')
		w.close('}')
	}
	if v < 12 {
		w.close(']')
	} else {
		w.close('}')
	}
	if v >= 34 {
		w.key("mappings")
		w.open('{')
		for _, g := range o.groups {
			w.key(g.suffix)
			w.texts(g.providers)
		}
		w.close('}')
	}
	w.close('}')
}

// summaries describes every provider of each tree that appears; below 1.29 only
// those that take part.
func (t *tx) summaries(w *jsonWriter, options []option, groups []*group, v pc.Microversion) {
	asked := map[string]bool{}
	for _, g := range groups {
		for _, a := range g.resources {
			asked[a.class] = true
		}
	}
	seen := make(map[string]bool, len(options))
	w.open('{')
	for _, o := range options {
		for _, a := range o.parts {
			switch {
			case v < 29 && !seen[a.p.UUID]:
				seen[a.p.UUID] = true
				t.summary(w, a.p, asked, v)
			case v >= 29 && !seen[a.p.Root]:
				seen[a.p.Root] = true
				for _, p := range t.tree(a.p.Root) {
					t.summary(w, p, asked, v)
				}
			}
		}
	}
	w.close('}')
}

func (t *tx) summary(w *jsonWriter, p *provider, asked map[string]bool, v pc.Microversion) {
	w.key(p.UUID)
	w.open('{')
	w.key("resources")
	w.open('{')
	for class, inv := range p.Inventories {
		if v >= 27 || asked[class] {
			w.key(class)
			w.open('{')
			w.key("capacity")
			w.number(inv.Capacity())
			w.key("used")
			w.number(t.used(p.UUID, class))
			w.close('}')
		}
	}
	w.close('}')
	if v >= 17 {
		w.key("traits")
		w.texts(p.Traits)
	}
	if v >= 29 {
		w.key("parent_provider_uuid")
		if p.Parent == "" {
			w.null()
		} else {
			w.text(p.Parent)
		}
		w.key("root_provider_uuid")
		w.text(p.Root)
	}
	w.close('}')
}

// jsonWriter writes JSON from its parts in order.
type jsonWriter struct {
	b    []byte
	next bool // a comma is due before the next part
}

func (w *jsonWriter) comma() {
	if w.next {
		w.b = append(w.b, ',')
	}
	w.next = true
}

func (w *jsonWriter) open(c byte)  { w.comma(); w.b = append(w.b, c); w.next = false }
func (w *jsonWriter) close(c byte) { w.b = append(w.b, c); w.next = true }
func (w *jsonWriter) null()        { w.comma(); w.b = append(w.b, "null"...) }

func (w *jsonWriter) number(n int64) { w.comma(); w.b = strconv.AppendInt(w.b, n, 10) }

func (w *jsonWriter) key(s string) { w.text(s); w.b = append(w.b, ':'); w.next = false }

func (w *jsonWriter) text(s string) {
	w.comma()
	for _, c := range []byte(s) {
		if c < ' ' || c > '~' || c == '"' || c == '\\' {
			quoted, _ := json.Marshal(s) // of a string it does not fail
			w.b = append(w.b, quoted...)
			return
		}
	}
	w.b = append(append(append(w.b, '"'), s...), '"')
}

func (w *jsonWriter) texts(list []string) {
	w.open('[')
	for _, s := range list {
		w.text(s)
	}
	w.close(']')
}
