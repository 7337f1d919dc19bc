package conductor

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"berth/internal/fault"
	"berth/migration"
	"berth/topology"
)

// Begun gives the migration of this guest that an earlier request with the same uuid has
// made; false where there is none. fault.Exists where that was asked for another move, with
// every difference: whoever repeats a request would take the wrong move for its own. An
// empty type is live or cold, as the guest was; a flavor of which the name alone is known
// is compared by its name.
func (c *Conductor) Begun(r Request) (migration.Migration, bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.stories[r.Migration]
	if r.Migration == "" || s == nil || s.rec.InstanceUUID != r.Instance {
		return migration.Migration{}, false, nil
	}
	if reasons := s.differs(r); len(reasons) > 0 {
		return migration.Migration{}, false, fault.Refuse(fault.Exists, r.doing(), reasons...)
	}
	return s.view(), true, nil
}

// differs is what a request asks of a migration that was begun without it.
func (s *story) differs(r Request) []fault.Reason {
	var out []fault.Reason
	add := func(what, have, want string) {
		have, want = cmp.Or(have, "none"), cmp.Or(want, "none")
		if have == want { // of the same name, and otherwise not the same
			have, want = have+", as it was then", want+", as it is asked for now"
		}
		out = append(out, fault.Reason{
			Code: "uuid_taken", Message: fmt.Sprintf("migration %s was begun with %s %s, not %s", s.uuid, what, have, want), Have: have, Want: want,
			Change: "ask as before to be told of it, or name another uuid",
		})
	}
	if either := r.Type == "" && (s.kind == migration.TypeLiveMigration || s.kind == migration.TypeMigration); !either && r.Type != s.kind {
		add("type", s.kind, cmp.Or(r.Type, migration.TypeLiveMigration))
	}
	if a, b := s.change.Flavor, r.Change.Flavor; !isFlavor(a, b) {
		add("flavor", nameOf(a), nameOf(b))
	}
	if a, b := s.change.Image, r.Change.Image; !sameImage(a, b) {
		add("image", pathOf(a), pathOf(b))
	}
	if s.named != r.Destination {
		add("destination", s.named, r.Destination)
	}
	if !slices.Equal(s.next, r.Alternates) {
		add("alternates", strings.Join(s.next, ", "), strings.Join(r.Alternates, ", "))
	}
	if source := cmp.Or(r.Source, s.c.cfg.Local); s.from != source && (r.Source != "" || !s.evacuates()) {
		add("source", s.from, source)
	}
	if e := s.rec.Evacuation; e != nil && e.Stopped != r.Stopped {
		add("stopped", strconv.FormatBool(e.Stopped), strconv.FormatBool(r.Stopped))
	}
	if e := s.rec.Evacuation; e != nil && e.AcceptLoss != r.AcceptLoss {
		add("accepted loss", strconv.FormatBool(e.AcceptLoss), strconv.FormatBool(r.AcceptLoss))
	}
	if s.rec.ShareNothing != r.ShareNothing {
		add("share-nothing", strconv.FormatBool(s.rec.ShareNothing), strconv.FormatBool(r.ShareNothing))
	}
	return out
}

// isFlavor compares a flavor with one of which perhaps the name alone is known.
func isFlavor(was, now *topology.Flavor) bool {
	if was == nil || now == nil {
		return was == now
	}
	return was.Name == now.Name && sameFlavor(topology.Flavor{Name: now.Name}, *now) || sameFlavor(*was, *now)
}

func sameImage(was, now *migration.Image) bool {
	if was == nil || now == nil {
		return was == now
	}
	return was.Path == now.Path && was.Format == now.Format && maps.Equal(was.Properties, now.Properties)
}

func nameOf(f *topology.Flavor) string {
	if f == nil {
		return ""
	}
	return f.Name
}

func pathOf(i *migration.Image) string {
	if i == nil {
		return ""
	}
	return i.Path
}
