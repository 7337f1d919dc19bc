package processes

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"berth/agent/host/disks"
	"berth/internal/fault"
)

// Finder finds the processes of instances; Table does.
type Finder interface {
	Of(uuid string) ([]int, error)
}

// Writers finds who has files open for writing; disks.Files does.
type Writers interface {
	Writers(paths ...string) ([]disks.Writer, error)
}

// Witness says whether an instance that libvirt calls off is off.
type Witness struct {
	Finder  Finder
	Writers Writers
}

// Off is nil when no QEMU process of the instance lives on this host, and no process has one
// of the files open for writing. The files are given by path, each with the target of its
// disk; none leaves that question out, as for a source whose instance runs elsewhere on
// shared storage. It refuses with every reason; fault.Unavailable where it cannot be known.
// It may block while a file server does not answer.
func (w Witness) Off(uuid, name string, files map[string]string) error {
	var no fault.Refusal
	pids, err := w.Finder.Of(uuid)
	if err != nil {
		return err
	}
	if len(pids) > 0 {
		no.Add(fault.Forbidden, runs(name, pids))
		return no.Err("")
	}
	reasons, err := w.Written(files)
	if err != nil {
		return err
	}
	no.Add(fault.Forbidden, reasons...)
	return no.Err("")
}

// Written gives a reason for each process that has one of the files open for writing.
func (w Witness) Written(files map[string]string) ([]fault.Reason, error) {
	if len(files) == 0 {
		return nil, nil
	}
	writers, err := w.Writers.Writers(slices.Sorted(maps.Keys(files))...)
	if err != nil {
		return nil, err
	}
	var out []fault.Reason
	for _, by := range writers {
		change := "find out who it is (fuser " + by.Path + "; on shared storage, on the other hosts too), end it, and try again"
		if by.PID != 0 {
			change = "look what it does (ps " + strconv.Itoa(by.PID) + "), end it, and try again"
		}
		out = append(out, fault.Reason{
			Code: "disk_open_for_writing", Message: "disk " + files[by.Path] + " (" + by.Path + ") is open for writing by " + by.String() + ", and its guest is off",
			Want: by.Path, Have: by.String(), Change: change,
		})
	}
	return out, nil
}

// runs is the contradiction of the two witnesses.
func runs(name string, pids []int) fault.Reason {
	var words []string
	for _, pid := range pids {
		words = append(words, strconv.Itoa(pid))
	}
	list := strings.Join(words, " ")
	return fault.Reason{
		Code: "qemu_runs", Message: "libvirt calls instance " + name + " shut off, and its QEMU runs (pid " + strings.Join(words, ", ") + ")",
		Have: list, Want: "no process",
		// libvirt does not find a process again whose status file it could not read: nothing but
		// its end, from inside or from here, makes the two agree.
		Change: "shut it down from inside, or kill " + list,
	}
}
