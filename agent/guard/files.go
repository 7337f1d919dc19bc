package guard

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// OwnerState is what an owner file says of a guest.
type OwnerState string

// The states.
const (
	OwnerHere     OwnerState = "here"     // the token is here, and no move has it
	OwnerMoving   OwnerState = "moving"   // a move has it, or its token may go at any moment
	OwnerArriving OwnerState = "arriving" // a claim waits for it
	OwnerLeft     OwnerState = "left"     // the token is here, and the guest left by a migration that Berth did not conduct
	OwnerGone     OwnerState = "gone"     // the token is elsewhere
	OwnerAwaits   OwnerState = "awaits"   // the token is here, and the fleet's records have not confirmed it in this boot
)

// Owner is an owner file.
type Owner struct {
	Boot      string     `json:"boot"` // it is good in this boot only
	Instance  string     `json:"instance"`
	Name      string     `json:"name,omitempty"`
	State     OwnerState `json:"state"`
	Migration string     `json:"migration,omitempty"` // arriving, moving: by which
	Foreign   bool       `json:"foreign,omitempty"`   // arriving: see Arrival.Foreign
	Holder    string     `json:"holder,omitempty"`    // gone: where to
}

// begun is an arrival that was let in while no agent answered.
type begun struct {
	Boot  string        `json:"boot"`
	Since time.Duration `json:"since"` // on the boot clock
	// Migration is the one that the document names which it was let in with; empty
	// for none. What is started must name it too: a definition that an earlier move
	// has left here is not what arrives.
	Migration string `json:"migration,omitempty"`
}

// Files is the guard's folder. Paths are made of uuids only.
type Files struct {
	Dir  string // [guard] directory
	Boot string // this boot's id
	// State is the state directory, where a guest's note outlives a reboot: see Keep. Empty for
	// none.
	State string
}

const (
	ownersDir   = "owners"
	begunDir    = "begun"
	startedDir  = "started"
	guestsDir   = "guests"
	daemonFile  = "daemon"
	managedFile = "managed"
)

// largest is how much of a file is read: what is longer was not written here.
const largest = 4096

var uuidForm = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

func (f Files) path(dir, instance string) (string, error) {
	if !uuidForm.MatchString(instance) {
		return "", fmt.Errorf("guard files: %q is not a uuid", instance)
	}
	return filepath.Join(f.Dir, dir, instance), nil
}

// Owner reads a guest's owner file. What is absent, damaged, of another guest or
// of another boot is not there: false; why says which, for people.
func (f Files) Owner(instance string) (o Owner, ok bool, why string) {
	path, err := f.path(ownersDir, instance)
	if err != nil {
		return Owner{}, false, err.Error()
	}
	err = read(path, &o)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Owner{}, false, "there is no owner file"
	case err != nil:
		return Owner{}, false, "its owner file cannot be read: " + err.Error()
	case o.Instance != instance:
		return Owner{}, false, "its owner file is of another guest"
	case o.Boot != f.Boot || o.Boot == "":
		return Owner{}, false, "its owner file is of an earlier boot"
	case !slices.Contains([]OwnerState{OwnerHere, OwnerMoving, OwnerArriving, OwnerLeft, OwnerGone, OwnerAwaits}, o.State):
		return Owner{}, false, fmt.Sprintf("its owner file says %q", o.State)
	}
	return o, true, ""
}

// HasOwner reports whether a guest has an owner file, good or not, or a note that outlives the
// boot: then it is, or was, managed here.
func (f Files) HasOwner(instance string) bool {
	path, err := f.path(ownersDir, instance)
	if err != nil {
		return false
	}
	if _, err = os.Lstat(path); err == nil || f.State == "" {
		return err == nil
	}
	_, err = os.Lstat(filepath.Join(f.State, guestsDir, instance))
	return err == nil
}

// Keep makes the notes that outlive a boot those of these guests: on a host whose guests may be
// given to others while it is dead, an adopted guest has nothing else by which a hook without an
// agent knows, right after the boot, that it is managed. Written is only what differs; an error
// leaves the rest done.
func (f Files) Keep(guests []string) error {
	if f.State == "" {
		return nil
	}
	dir := filepath.Join(f.State, guestsDir)
	have, err := Files{Dir: f.State}.list(guestsDir)
	if err != nil {
		return err
	}
	var errs []error
	changed := false
	for _, instance := range guests {
		if slices.Contains(have, instance) || !uuidForm.MatchString(instance) {
			continue
		}
		changed = true
		errs = append(errs, os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, instance), nil, 0o600))
	}
	for _, instance := range have {
		if !slices.Contains(guests, instance) {
			changed = true
			errs = append(errs, remove(filepath.Join(dir, instance)))
		}
	}
	if changed {
		if d, err := os.Open(dir); err != nil {
			errs = append(errs, err)
		} else {
			errs = append(errs, d.Sync(), d.Close())
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("note which guests are managed: %w", err)
	}
	return nil
}

// SetOwner writes a guest's owner file: whole or not at all. When it cannot, it
// takes the old one away, which says no.
func (f Files) SetOwner(o Owner) error {
	path, err := f.path(ownersDir, o.Instance)
	if err != nil {
		return err
	}
	o.Boot = f.Boot
	if err := write(path, o); err != nil {
		return errors.Join(err, remove(path))
	}
	return nil
}

// DropOwner takes a guest's owner file away; success when there is none.
func (f Files) DropOwner(instance string) error {
	path, err := f.path(ownersDir, instance)
	if err != nil {
		return err
	}
	return remove(path)
}

// Owners lists the guests that have an owner file, good or not.
func (f Files) Owners() ([]string, error) { return f.list(ownersDir) }

// Begin notes that an arrival was let in, with a document that names migration.
func (f Files) Begin(instance, migration string, since time.Duration) error {
	path, err := f.path(begunDir, instance)
	if err != nil {
		return err
	}
	return write(path, begun{Boot: f.Boot, Since: since, Migration: migration})
}

// begunFor is how long after `migrate begin` libvirt may still ask `prepare` and
// `start` for it: milliseconds as measured, seconds on a host that swaps.
const begunFor = 30 * time.Second

// Begun reports whether an arrival was let in a moment ago, and the migration that
// its document named.
func (f Files) Begun(instance string, now time.Duration) (migration string, ok bool) {
	path, err := f.path(begunDir, instance)
	if err != nil {
		return "", false
	}
	var b begun
	ok = read(path, &b) == nil && b.Boot == f.Boot && b.Boot != "" && now >= b.Since && now-b.Since < begunFor
	return b.Migration, ok
}

// End forgets that an arrival was let in.
func (f Files) End(instance string) error {
	path, err := f.path(begunDir, instance)
	if err != nil {
		return err
	}
	return remove(path)
}

// Started is a guest that was let in without a claim.
type Started struct {
	Instance string `json:"instance"`
	Arrived  bool   `json:"arrived,omitempty"` // from another host, while no agent answered
}

// NoteStarted notes that a guest was let in without a claim.
func (f Files) NoteStarted(s Started) error {
	path, err := f.path(startedDir, s.Instance)
	if err != nil {
		return err
	}
	return write(path, s)
}

// Started lists the guests that were let in and not looked at yet. Notes of an
// earlier boot are good: the guest may have been started again since. A damaged one
// is of a guest that started.
func (f Files) Started() ([]Started, error) {
	list, err := f.list(startedDir)
	var out []Started
	for _, instance := range list {
		var s Started
		if path, err := f.path(startedDir, instance); err != nil || read(path, &s) != nil {
			s = Started{}
		}
		s.Instance = instance
		out = append(out, s)
	}
	return out, err
}

// DropStarted forgets one of them.
func (f Files) DropStarted(instance string) error {
	path, err := f.path(startedDir, instance)
	if err != nil {
		return err
	}
	return remove(path)
}

func (f Files) list(dir string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(f.Dir, dir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("guard files: %w", err)
	}
	var out []string
	for _, e := range entries {
		if uuidForm.MatchString(e.Name()) {
			out = append(out, e.Name())
		}
	}
	slices.Sort(out)
	return out, nil
}

// Called tells whether the libvirt daemon that lives now has called the hook, and
// when the hook was last called. The hook copies its parent's line of
// proc/PID/stat at every call, `reconnect` included; the line counts while the
// process with that pid is the same one. proc is the folder of processes.
func (f Files) Called(proc string) (at time.Time, alive bool) {
	path := filepath.Join(f.Dir, daemonFile)
	st, err := os.Stat(path)
	if err != nil {
		return time.Time{}, false
	}
	then, err := os.ReadFile(path)
	if err != nil {
		return st.ModTime(), false
	}
	was, ok := parseProcess(string(then))
	if !ok {
		return st.ModTime(), false
	}
	line, err := os.ReadFile(filepath.Join(proc, was.pid, "stat"))
	if err != nil {
		return st.ModTime(), false
	}
	is, ok := parseProcess(string(line))
	daemon := strings.HasPrefix(is.name, "libvirtd") || strings.HasPrefix(is.name, "virtqemud")
	return st.ModTime(), ok && daemon && is == was
}

// process is who a process is: the start time tells it from a later one of the
// same pid.
type process struct{ pid, name, start string }

var digits = regexp.MustCompile(`^[0-9]+$`)

// parseProcess reads a line of proc/PID/stat (proc(5)): pid, name in
// parentheses, then fields of which the 22nd of all is the start time.
func parseProcess(line string) (process, bool) {
	pid, rest, ok := strings.Cut(line, " (")
	end := strings.LastIndex(rest, ") ")
	if !ok || end < 0 || !digits.MatchString(pid) {
		return process{}, false
	}
	fields := strings.Fields(rest[end+2:])
	if len(fields) < 20 || !digits.MatchString(fields[19]) {
		return process{}, false
	}
	return process{pid: pid, name: rest[:end], start: fields[19]}, true
}

// Managed reports whether an agent has ever run in mode manage here: the marker
// is in its state directory. What cannot be read is taken for a marker: then
// managed guests need their proof, and unmanaged ones go through all the same.
func Managed(stateDir string) bool {
	_, err := os.Stat(filepath.Join(stateDir, managedFile))
	return !errors.Is(err, fs.ErrNotExist)
}

// MarkManaged leaves the durable marker. Safe to repeat.
func MarkManaged(stateDir string) error {
	path := filepath.Join(stateDir, managedFile)
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("mark this host as managed: %w", err)
	}
	_, err = f.WriteString("An agent has run in mode manage on this host: libvirt's hook guards its guests.\n")
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(fmt.Errorf("mark this host as managed: %w", err), remove(path))
	}
	dir, err := os.Open(stateDir)
	if err != nil {
		return fmt.Errorf("mark this host as managed: %w", err)
	}
	if err = errors.Join(dir.Sync(), dir.Close()); err != nil {
		return fmt.Errorf("mark this host as managed: %w", err)
	}
	return nil
}

// openFile opens a regular file and nothing else: a pipe in its place must not hold
// libvirt up.
func openFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, errors.Join(fmt.Errorf("%s is no file", path), err, f.Close())
	}
	return f, nil
}

func read(path string, v any) error {
	f, err := openFile(path)
	if err != nil {
		return err
	}
	defer f.Close()
	var buf [largest + 1]byte
	n := 0
	for n < len(buf) {
		m, err := f.Read(buf[n:])
		n += m
		if err != nil {
			break
		}
	}
	if n > largest {
		return fmt.Errorf("%s: larger than %d bytes", path, largest)
	}
	if err := json.Unmarshal(buf[:n], v); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// write puts a file in its place whole. It is not synced: the folder is on tmpfs,
// and a file of another boot counts for nothing.
func write(path string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("guard files: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("guard files: %w", err)
	}
	if err := os.WriteFile(path+".new", append(data, '\n'), 0o600); err != nil {
		return errors.Join(fmt.Errorf("guard files: %w", err), remove(path+".new"))
	}
	if err := os.Rename(path+".new", path); err != nil {
		return errors.Join(fmt.Errorf("guard files: %w", err), remove(path+".new"))
	}
	return nil
}

func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("guard files: %w", err)
	}
	return nil
}
