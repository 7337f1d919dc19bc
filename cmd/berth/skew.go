package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"berth/agent/api"
)

// skew is which versions of Berth the hosts run that answer.
type skew struct {
	// Versions are the hosts by what they run.
	Versions map[string][]string `json:"versions"`
	// Newest is what the others are to be brought to; empty where versions of builds from a work
	// tree, which have no order, are among them.
	Newest string   `json:"newest,omitempty"`
	Behind []string `json:"behind,omitempty"`
	// Apart says that there are hosts of which one is more than one version older than another:
	// 0.7.x beside 0.9.x. Nobody has tried what those make of each other.
	Apart bool `json:"more_than_one_apart,omitempty"`
}

// skewOf looks at what hosts run; nil where all that answer run the same.
func skewOf(hosts []api.HostEntry) *skew {
	s := skew{Versions: map[string][]string{}}
	for _, h := range hosts {
		if h.Reachable && h.Version != "" {
			s.Versions[h.Version] = append(s.Versions[h.Version], h.Name)
		}
	}
	if len(s.Versions) < 2 {
		return nil
	}
	var all []release
	for text := range s.Versions {
		r, is := parseRelease(text)
		if !is {
			return &s
		}
		all = append(all, r)
	}
	slices.SortFunc(all, release.compare)
	oldest, newest := all[0], all[len(all)-1]
	s.Newest = newest.text
	for _, r := range all[:len(all)-1] {
		s.Behind = append(s.Behind, s.Versions[r.text]...)
	}
	slices.Sort(s.Behind)
	s.Apart = newest.major == oldest.major && newest.minor > oldest.minor+1
	return &s
}

// lines say it below the table of hosts.
func (s *skew) lines(w io.Writer) {
	var runs []string
	for _, v := range slices.Sorted(maps.Keys(s.Versions)) {
		runs = append(runs, fmt.Sprintf("%s on %s", v, strings.Join(s.Versions[v], ", ")))
	}
	fmt.Fprintf(w, "\nhosts run different versions: %s\n", strings.Join(runs, "; "))
	switch {
	case s.Newest == "":
		fmt.Fprintln(w, "  builds from a work tree have no order; what one does not know, it refuses by name (peer_too_old)")
	case s.Apart:
		fmt.Fprintf(w, "  more than one version apart, which nobody has tried\n  to do: upgrade to %s, one host at a time: %s\n", s.Newest, strings.Join(s.Behind, ", "))
	default:
		fmt.Fprintf(w, "  guests move both ways; what the older one does not know is refused (peer_too_old)\n  to do: upgrade to %s, one host at a time: %s\n", s.Newest, strings.Join(s.Behind, ", "))
	}
}

// release is a version of a released build, which has an order.
type release struct {
	text                string
	major, minor, patch int
}

// parseRelease reads "1.2.3"; false for anything else.
func parseRelease(text string) (release, bool) {
	r := release{text: text}
	parts := strings.Split(strings.TrimPrefix(text, "v"), ".")
	if len(parts) != 3 {
		return r, false
	}
	for i, into := range []*int{&r.major, &r.minor, &r.patch} {
		n, err := strconv.Atoi(parts[i])
		if err != nil || n < 0 {
			return r, false
		}
		*into = n
	}
	return r, true
}

func (r release) compare(o release) int {
	return cmp.Or(cmp.Compare(r.major, o.major), cmp.Compare(r.minor, o.minor), cmp.Compare(r.patch, o.patch))
}
