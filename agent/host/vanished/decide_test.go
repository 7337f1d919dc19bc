package vanished

import (
	"fmt"
	"strings"
	"testing"

	"berth/driver"
)

// TestDecide_EveryCombination_HasItsAction enumerates all facts against the rules in words.
func TestDecide_EveryCombination_HasItsAction(t *testing.T) {
	used := map[int]bool{}
	n := 0
	for _, process := range []Process{ProcessNone, ProcessLives, ProcessUnknown} {
		for _, definition := range []Definition{DefinitionAbsent, DefinitionPresent, DefinitionUnknown} {
			for bits := range 8 {
				f := Facts{Process: process, Definition: definition, Undefined: bits&1 != 0, Ended: bits&2 != 0, Alone: bits&4 != 0}
				n++
				want := Keep
				switch {
				case process == ProcessLives: // it runs, whatever anybody says
				case f.Undefined:
					want = Release
				case process == ProcessNone && definition == DefinitionAbsent && (f.Ended || f.Alone):
					want = Release
				}
				got, cause := Decide(f)
				if got != want {
					t.Errorf("%+v: action %v because of %s, want %v", f, got, cause, want)
				}
				for i, r := range table {
					if r.cause == cause {
						used[i] = true
					}
				}
				if got == Keep {
					r := reasonOf(cause, Instance{"u", "web"}, "/etc/libvirt/qemu", "", []int{7})
					if r.Message == "" || r.Change == "" || !strings.Contains(r.Message, "web") {
						t.Errorf("%+v: kept with no message or remedy: %+v", f, r)
					}
				}
			}
		}
	}
	if n != 72 || len(used) != len(table) {
		t.Errorf("%d combinations, %d of %d rows used", n, len(used), len(table))
	}
}

func TestLook_FolderAndFiles(t *testing.T) {
	web := Instance{"uuid-web", "web"}
	listed := func(names ...string) (out []driver.Domain) {
		for _, n := range names {
			out = append(out, driver.Domain{UUID: "uuid-" + n, Name: n, Persistent: true})
		}
		return out
	}
	files := func(pairs ...string) (out []driver.DefinitionFile) {
		for _, p := range pairs {
			name, id, _ := strings.Cut(p, "=")
			out = append(out, driver.DefinitionFile{Name: name, UUID: id})
		}
		return out
	}
	transient := []driver.Domain{{UUID: "uuid-job", Name: "job"}}
	for _, c := range []struct {
		what   string
		now    driver.Definitions
		listed []driver.Domain
		before string
		want   Definition
	}{
		{"its file is there", driver.Definitions{Files: files("web=uuid-web")}, nil, "", DefinitionPresent},
		{"its file is there, and tells nothing", driver.Definitions{Files: files("web=")}, nil, "", DefinitionPresent},
		{"its file has another name", driver.Definitions{Files: files("new=uuid-web")}, nil, "", DefinitionPresent},
		{"a file of its name is another's", driver.Definitions{Identity: "1", Files: files("web=uuid-x")}, nil, "1", DefinitionAbsent},
		{"a file that tells nothing, of nobody", driver.Definitions{Identity: "1", Files: files("odd=")}, nil, "1", DefinitionPresent},
		{"a file that tells nothing, of one that is listed", driver.Definitions{Files: files("db=")}, listed("db"), "", DefinitionAbsent},
		{"a file that tells nothing, of another instance", driver.Definitions{Identity: "1", Files: files("mail=")}, nil, "1", DefinitionAbsent},
		{"the others have theirs", driver.Definitions{Files: files("db=uuid-db", "app=uuid-app")}, listed("db", "app"), "", DefinitionAbsent},
		{"one of the others has none", driver.Definitions{Identity: "1", Files: files("db=uuid-db")}, listed("db", "app"), "1", DefinitionUnknown},
		{"nobody else, the same folder", driver.Definitions{Identity: "1"}, nil, "1", DefinitionAbsent},
		{"nobody else, another folder", driver.Definitions{Identity: "2"}, nil, "1", DefinitionUnknown},
		{"nobody else, a folder never seen", driver.Definitions{Identity: "1"}, nil, "", DefinitionUnknown},
		{"a transient one needs no file", driver.Definitions{Identity: "2"}, transient, "1", DefinitionUnknown},
	} {
		t.Run(fmt.Sprint(c.what), func(t *testing.T) {
			if got := Look(c.now, web, c.listed, []string{"web", "mail"}, c.before); got != c.want {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}
