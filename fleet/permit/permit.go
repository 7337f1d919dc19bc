// Package permit decides who may change which of the fleet's records (package fleet). It is pure:
// the store that asks gives it what is written now.
//
// A host is known by its certificate. What it writes about others proves nothing, so a change is
// allowed by its key, by who has the record now, and by what the store has of that holder:
//
//	key                     who, beside an operator                                         when
//	hosts/X, alive/X        X                                                               always
//	hosts/X, delete         a host with the right fence                                     deaths/X stands
//	deaths/X                a host with the right fence, not X                              always
//	deaths/X, delete        X: it has returned                                              always
//	evacuated/X/M           any host                                                        deaths/X stands, and the instance was taken over so
//	evacuated/X/M, delete   X; a host with the right fence                                  always; deaths/X stands
//	instances/U, new        a host, of itself                                               Placement counts U on it, or on nobody
//	instances/U, change     its holder: keeps it or hands it over, with no lower epoch      always
//	instances/U, change     any host, with a higher epoch                                   the holder's death stands
//	instances/U, delete     its holder; a host with the right fence                         always; the holder's death stands
//	any, as it is written   any host: it renews the revision alone                          always
//
// A death counts only where it stood before the commit. Conditions of a commit give no right.
package permit

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	"berth/fleet"
	"berth/internal/fault"
)

// ReasonNotYours is the reason's code of a change that its writer may not make; Want is the host
// that may, where there is one.
const ReasonNotYours = "record_not_yours"

// Writer is who sends a commit.
type Writer struct {
	// Operator may change everything.
	Operator bool
	// Words name the writer in refusals: "host:host-a".
	Words string
	// Is reports whether the writer's certificate is that host's.
	Is func(host string) bool
	// Fences: the host has the right fence.
	Fences bool
}

// Store is what is written when the commit is decided.
type Store struct {
	// Get gives a record's value; false where there is none.
	Get func(key string) ([]byte, bool)
	// Holders gives the hosts on which Placement counts an instance; known is false where nobody
	// says.
	Holders func(instance string) (hosts []string, known bool)
}

// Check refuses a commit with every change that its writer may not make: fault.Forbidden.
func Check(w Writer, s Store, changes []fleet.Change) error {
	if w.Operator {
		return nil
	}
	var no []fault.Reason
	// after is a record as the commit leaves it.
	after := func(key string) []byte {
		for _, c := range changes {
			if c.Key == key {
				return c.Value
			}
		}
		value, _ := s.Get(key)
		return value
	}
	for _, c := range changes {
		if r := check(w, s, c, after); r != nil {
			r.Code, r.Have = ReasonNotYours, w.Words
			no = append(no, *r)
		}
	}
	if len(no) > 0 {
		return fault.Refuse(fault.Forbidden, "write the fleet's records", no...)
	}
	return nil
}

// check is nil where the change is allowed.
func check(w Writer, s Store, c fleet.Change, after func(key string) []byte) *fault.Reason {
	old, found := s.Get(c.Key)
	if c.Value == nil && !found {
		return nil // nothing is changed
	}
	if c.Value != nil && found && same(old, c.Value) {
		return nil
	}
	prefix, rest, _ := strings.Cut(c.Key, "/")
	name, more, nested := strings.Cut(rest, "/")
	dead := func(host string) bool { _, stands := s.Get(fleet.DeathsPrefix + host); return stands }
	switch {
	case name == "" || nested != (prefix == "evacuated") || strings.Contains(more, "/"):
	case prefix == "hosts", prefix == "alive":
		if w.Is(name) || prefix == "hosts" && c.Value == nil && w.Fences && dead(name) {
			return nil
		}
		return refused(c, "only host "+name+" writes it", name, "")
	case prefix == "deaths":
		return checkDeath(w, c, name)
	case prefix == "evacuated":
		switch {
		case c.Value != nil && !dead(name):
			return refused(c, "host "+name+" is not dead", "", "berth host fence "+name+", or berth host declare-dead "+name)
		case c.Value == nil && !w.Is(name) && !(w.Fences && dead(name)):
			return refused(c, "only host "+name+" says that it has cleaned up", name, fenceRight(w))
		}
		return checkEvacuated(c, name, more, after)
	case prefix == "instances":
		return checkInstance(w, s, c, name, old, found, dead)
	}
	return refused(c, "it is no record of the fleet's that a host writes", "", "")
}

func checkDeath(w Writer, c fleet.Change, host string) *fault.Reason {
	switch {
	case c.Value == nil && w.Is(host):
		return nil
	case c.Value == nil:
		return refused(c, "only host "+host+" takes its own death away: it has come back", host, "start the agent on "+host)
	case w.Is(host):
		return refused(c, "a host does not declare itself dead", "", "ask another host: berth host declare-dead "+host+" -c HOST")
	case !w.Fences:
		return refused(c, w.Words+" has not the right fence: it may not say that another host is dead", "", fenceRight(w))
	}
	var d fleet.Death
	if json.Unmarshal(c.Value, &d) != nil || d.Host != host {
		return refused(c, "its value is of another host", "", "")
	}
	return nil
}

// checkEvacuated wants the take-over that a record tells of: the source gives way by it.
func checkEvacuated(c fleet.Change, source, migration string, after func(key string) []byte) *fault.Reason {
	var e fleet.Evacuated
	var in fleet.Instance
	switch {
	case c.Value == nil:
		return nil
	case json.Unmarshal(c.Value, &e) != nil || e.Source != source || e.Migration != migration:
		return refused(c, "its value is of another migration", "", "")
	case json.Unmarshal(after(fleet.InstancesPrefix+e.Instance), &in) != nil || in.Host != e.To || in.Epoch < e.Epoch:
		return refused(c, "instance "+e.Instance+" was not taken over by it", "", "")
	}
	return nil
}

func checkInstance(w Writer, s Store, c fleet.Change, uuid string, old []byte, found bool, dead func(string) bool) *fault.Reason {
	var was, now fleet.Instance
	if c.Value != nil && (json.Unmarshal(c.Value, &now) != nil || now.UUID != uuid || now.Host == "") {
		return refused(c, "its value is of another instance, or names no host", "", "")
	}
	if !found {
		return checkNew(w, s, c, uuid, now)
	}
	if json.Unmarshal(old, &was) != nil || was.Host == "" {
		return refused(c, "nobody can read whose it is", "", "have an operator delete it, once it is known whose the instance is")
	}
	holder := w.Is(was.Host)
	switch {
	case c.Value == nil && (holder || w.Fences && dead(was.Host)):
		return nil
	case c.Value == nil:
		return refused(c, "only host "+was.Host+", which has the instance, deletes it", was.Host, fenceRight(w))
	case holder && now.Epoch >= was.Epoch, dead(was.Host) && now.Epoch > was.Epoch:
		return nil
	case holder:
		return refused(c, fmt.Sprintf("its epoch is %d, and cannot become %d", was.Epoch, now.Epoch), "", "")
	}
	return refused(c, "host "+was.Host+" has the instance, has not handed it over and is not dead", was.Host,
		"start the agent on "+was.Host+"; if that host is gone for good, or the store was restored and the instance was evacuated from there since the backup: stop its agent, berth host declare-dead "+was.Host+
			` --reason "what you have checked"`+", and start it again once berth status does not say this any more")
}

// checkNew decides about an instance of which there is no record. Its owner's record may be missing
// for a moment, so another witness says whose it can be.
func checkNew(w Writer, s Store, c fleet.Change, uuid string, now fleet.Instance) *fault.Reason {
	if !w.Is(now.Host) {
		return refused(c, "only host "+now.Host+" says that it has the instance", now.Host, "")
	}
	hosts, known := s.Holders(uuid)
	if !known {
		return refused(c, "Placement did not say whose the instance is", "", "ask again")
	}
	for _, h := range hosts {
		if w.Is(h) {
			return nil
		}
	}
	if len(hosts) == 0 {
		return nil
	}
	return refused(c, "Placement counts the instance on "+strings.Join(hosts, ", "), hosts[0], "berth audit --heal on "+now.Host+", if the instance is there")
}

func refused(c fleet.Change, why, want, change string) *fault.Reason {
	return &fault.Reason{Message: "record " + c.Key + ": " + why, Want: want, Change: change}
}

func fenceRight(w Writer) string {
	name := strings.TrimPrefix(w.Words, "host:")
	return "ask a host that has it; or berth pki host " + name + " --right fence, and give it that certificate; or start the embedded Placement with --fencer " + name
}

// same reports whether two values say the same.
func same(a, b []byte) bool {
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && reflect.DeepEqual(x, y)
}
