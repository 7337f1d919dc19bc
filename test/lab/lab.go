package lab

import (
	"context"
	_ "embed" // hostinit's source
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

//go:embed hostinit/main.go
var hostinitSource []byte

// Options say what Up makes.
type Options struct {
	// Dir is the lab's folder, made if absent. All that the lab writes is below
	// it; Down removes it. One lab per folder.
	Dir string
	// Names are the hosts' names; empty means host-a and host-b.
	Names []string
	// Owner is the process the lab ends with; zero means this one. Ignored with
	// Detached.
	Owner int
	// Detached lets the lab outlive its maker, until Down.
	Detached bool
	// PKI is a folder with ca.crt and, per host, NAME/host.crt and NAME/host.key
	// or NAME.crt and NAME.key. Empty: the lab makes its own. A host's
	// certificate must name NAME, NAME-mig and its addresses, and allow
	// digitalSignature and keyEncipherment, for both server and client.
	PKI string
	// Shared are folders of the machine, made if absent, that every host sees at
	// the same path, also where the host has a folder of its own there. Anything
	// not below a host's own folders is seen by all hosts anyway, and so is
	// Lab.SharedDir.
	Shared []string
	// Backports names hosts whose libvirt is that of the release's backports, where
	// the machine's own is older; elsewhere they run the machine's own as the others
	// do. What a host runs, its libvirtd says.
	Backports []string
	// NoLibvirtd leaves libvirtd to be started by the caller.
	NoLibvirtd bool
	// Listen lets every host's libvirtd listen on the network, with TLS on port
	// 16514. Without it, as Berth's own streams want it, a libvirtd is reached
	// through its unix socket alone.
	Listen bool
	// Apart names hosts that cannot send each other a packet, on neither link: each
	// reaches the switch and every host that is not named.
	Apart []string
	// QEMUHook is the text of a hook that every host's libvirtd finds in qemu.d when
	// it starts; empty for none.
	QEMUHook string
	// Cells, where not zero, shows every host that many NUMA cells instead of the
	// machine's, each with its part of the machine's CPUs (dealt in turn: CPU 0 to
	// cell 0, CPU 1 to cell 1) and of its memory. It is a view: libvirt, QEMU and
	// the agent take it for the hardware, memory can be bound to any of the cells,
	// and the kernel pays no heed.
	Cells int
	// HugePages is how many pages of 2 MiB each host has, in equal parts in its
	// cells (one cell, where Cells is zero). The machine's own pool is not
	// touched: see hugepages.go. The default, none, changes nothing on the
	// machine.
	HugePages int
}

// Lab is a running lab.
type Lab struct {
	Name   string // the last part of Dir
	Dir    string
	Hosts  []*Host
	Switch *Host // holds the bridges; has a /run, /etc/berth and /var/lib/berth of its own, and no libvirtd

	owner      process // zero: detached
	shared     []string
	pki        string
	noLibvirtd bool
	listen     bool
	cells      int // see Options
	hugePages  int
	hook       string // kept in the hosts' own files, which outlive them
	ca         *authority
}

// state is lab.json, written before the first process so that whatever happens
// next can be cleaned up.
type state struct {
	Owner      process
	Shared     []string
	NoLibvirtd bool
	Listen     bool `json:",omitempty"`
	Cells      int  `json:",omitempty"`
	HugePages  int  `json:",omitempty"`
	Switch     process
	Hosts      []hostState
}

type hostState struct {
	Name      string
	Init      process
	Backports bool `json:",omitempty"`
	Apart     bool `json:",omitempty"`
}

var hostName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,40}$`)

// Up brings a lab up, after clearing away what a crashed one left in the same
// folder. It needs root and what Install provides, refuses while a lab in this
// folder lives, and takes about a second.
func Up(ctx context.Context, o Options) (*Lab, error) {
	dir, err := filepath.Abs(o.Dir)
	if err != nil || o.Dir == "" {
		return nil, errors.Join(errors.New("bring up a lab: no folder named"), err)
	}
	l := &Lab{Name: filepath.Base(dir), Dir: dir, pki: o.PKI, noLibvirtd: o.NoLibvirtd, listen: o.Listen, shared: o.Shared, cells: o.Cells, hugePages: o.HugePages, hook: o.QEMUHook}
	if err := l.up(ctx, o); err != nil {
		return nil, fmt.Errorf("bring up lab %s: %w", dir, err)
	}
	return l, nil
}

func (l *Lab) up(ctx context.Context, o Options) error {
	if strings.ContainsAny(l.Dir, `:,\"' `) {
		return errors.New(`the folder's name may not contain : , \ quotes or spaces: overlay mounts cannot name it`)
	}
	missing, err := Missing(ctx, Packages()...)
	if err != nil {
		return err
	}
	if os.Getuid() != 0 {
		missing = append([]string{"root"}, missing...)
	}
	if len(missing) > 0 {
		return fmt.Errorf("needed but missing: %s", strings.Join(missing, ", "))
	}
	if err := clear(l.Dir); err != nil {
		return err
	}
	if o.Cells < 0 || o.HugePages < 0 {
		return fmt.Errorf("%d cells and %d huge pages: want none or more", o.Cells, o.HugePages)
	}
	names := o.Names
	if len(names) == 0 {
		names = []string{"host-a", "host-b"}
	}
	if len(names) > 200 {
		return errors.New("at most 200 hosts")
	}
	for i, name := range names {
		if !hostName.MatchString(name) || name == "switch" || slices.Contains(names[:i], name) {
			return fmt.Errorf("host name %q: want each once, of a-z, 0-9 and -, and not switch", name)
		}
		l.Hosts = append(l.Hosts, &Host{Name: name, Index: i + 1, lab: l, dir: filepath.Join(l.Dir, name),
			backports: slices.Contains(o.Backports, name), apart: slices.Contains(o.Apart, name)})
	}
	for _, name := range o.Apart {
		if !slices.Contains(names, name) {
			return fmt.Errorf("%q is to be apart from others, and is no host", name)
		}
	}
	for _, name := range o.Backports {
		if !slices.Contains(names, name) {
			return fmt.Errorf("libvirt from backports on %q, which is no host", name)
		}
	}
	l.Switch = &Host{Name: "switch", Index: 254, lab: l, dir: filepath.Join(l.Dir, "switch")}
	if !o.Detached {
		pid := o.Owner
		if pid == 0 {
			pid = os.Getpid()
		}
		if l.owner, err = seen(pid); err != nil {
			return fmt.Errorf("look at the owner, process %d: %w", pid, err)
		}
	}
	for _, d := range append([]string{l.Dir, l.SharedDir()}, l.shared...) {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	if l.pki == "" {
		if l.ca, err = newAuthority(); err != nil {
			return err
		}
	}
	if err := l.start(ctx); err != nil {
		// What came up goes down again; the error that matters is the first.
		return errors.Join(err, l.end())
	}
	return nil
}

// Prepare builds the hosts' first process into the cache, which Up does
// otherwise.
func Prepare(ctx context.Context) error {
	_, err := BuildStatic(ctx, CacheDir(), "hostinit", hostinitSource)
	return err
}

// start brings switch and hosts up.
func (l *Lab) start(ctx context.Context) error {
	if err := l.save(); err != nil {
		return err
	}
	hostinit, err := BuildStatic(ctx, CacheDir(), "hostinit", hostinitSource)
	if err != nil {
		return err
	}
	if err := l.Switch.boot(ctx, hostinit); err != nil {
		return fmt.Errorf("switch: %w", err)
	}
	if err := l.wireSwitch(ctx); err != nil {
		return fmt.Errorf("switch: %w", err)
	}
	// Also without pages of our own: a lab that crashed may have left its share.
	if err := machinePages().hold(l.Dir, l.hugePages*len(l.Hosts), l.Switch.init); err != nil {
		return err
	}
	g, gctx := errgroup.WithContext(ctx)
	for _, h := range l.Hosts {
		g.Go(func() error {
			if err := h.certify(); err != nil {
				return err
			}
			if err := l.bringUp(gctx, h); err != nil {
				return fmt.Errorf("host %s: %w", h.Name, err)
			}
			return nil
		})
	}
	err = g.Wait()
	return errors.Join(err, l.save())
}

// certify writes a new host's certificates.
func (h *Host) certify() error {
	if h.lab.pki != "" {
		return h.InstallPKI(h.lab.pki)
	}
	c, err := h.lab.ca.issue(h)
	if err != nil {
		return fmt.Errorf("certificate of host %s: %w", h.Name, err)
	}
	return h.writePKI(c)
}

// bringUp boots one host, wires it and starts its libvirtd.
func (l *Lab) bringUp(ctx context.Context, h *Host) error {
	hostinit, err := BuildStatic(ctx, CacheDir(), "hostinit", hostinitSource)
	if err != nil {
		return err
	}
	if err := h.boot(ctx, hostinit); err != nil {
		return err
	}
	if err := l.wire(ctx, h); err != nil {
		return err
	}
	if err := h.configureLibvirt(); err != nil {
		return err
	}
	if err := h.installHook(l.hook); err != nil {
		return err
	}
	if l.noLibvirtd {
		return nil
	}
	if err := h.recallCapabilities(); err != nil {
		return err
	}
	return h.StartLibvirtd(ctx)
}

// hostsFile is every host's /etc/hosts.
func (l *Lab) hostsFile() string {
	var b strings.Builder
	b.WriteString("127.0.0.1 localhost\n" + SwitchIP + " switch placement\n")
	for _, h := range l.Hosts {
		fmt.Fprintf(&b, "%s %s\n%s %s-mig\n", h.MgmtIP(), h.Name, h.MigIP(), h.Name)
	}
	return b.String()
}

// Host is the host of that name; "switch" is the switch.
func (l *Lab) Host(name string) (*Host, error) {
	for _, h := range append(l.Hosts, l.Switch) {
		if h.Name == name {
			return h, nil
		}
	}
	return nil, fmt.Errorf("lab %s has no host %q", l.Name, name)
}

// SharedDir is a folder that all hosts see at the same path: shared storage.
func (l *Lab) SharedDir() string { return filepath.Join(l.Dir, "shared") }

// Down ends every host and removes the lab's folder. It may be called again.
func (l *Lab) Down() error {
	if err := l.end(); err != nil {
		return fmt.Errorf("take down lab %s: %w", l.Dir, err)
	}
	if err := remove(l.Dir); err != nil {
		return fmt.Errorf("take down lab %s: %w", l.Dir, err)
	}
	return nil
}

// end powers every host off; the folder stays, with its logs.
func (l *Lab) end() error {
	var all []error
	hosts := append(slices.Clone(l.Hosts), l.Switch)
	// A host may have been powered off and on by a process that attached.
	if now, err := load(l.Dir); err == nil {
		hosts = append(append(hosts, now.Hosts...), now.Switch)
	}
	for _, h := range hosts {
		all = append(all, h.PowerOff(), h.keepCapabilities())
	}
	all = append(all, machinePages().hold(l.Dir, 0, process{}))
	return errors.Join(all...)
}

// save writes lab.json.
func (l *Lab) save() error {
	s := state{Owner: l.owner, Shared: l.shared, NoLibvirtd: l.noLibvirtd, Listen: l.listen, Cells: l.cells, HugePages: l.hugePages, Switch: l.Switch.init}
	for _, h := range l.Hosts {
		s.Hosts = append(s.Hosts, hostState{Name: h.Name, Init: h.init, Backports: h.backports, Apart: h.apart})
	}
	b, err := json.MarshalIndent(s, "", "\t")
	if err != nil {
		return err
	}
	path := filepath.Join(l.Dir, "lab.json")
	if err := os.WriteFile(path+".new", append(b, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// load reads lab.json; os.ErrNotExist where there is none.
func load(dir string) (*Lab, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	b, err := os.ReadFile(filepath.Join(dir, "lab.json"))
	if err != nil {
		return nil, err
	}
	var s state
	if err := json.Unmarshal(b, &s); err != nil {
		return nil, fmt.Errorf("%s/lab.json: %w", dir, err)
	}
	l := &Lab{Name: filepath.Base(dir), Dir: dir, owner: s.Owner, shared: s.Shared, noLibvirtd: s.NoLibvirtd, listen: s.Listen, cells: s.Cells, hugePages: s.HugePages}
	for i, h := range s.Hosts {
		l.Hosts = append(l.Hosts, &Host{Name: h.Name, Index: i + 1, lab: l, dir: filepath.Join(dir, h.Name), init: h.Init, backports: h.Backports, apart: h.Apart})
	}
	l.Switch = &Host{Name: "switch", Index: 254, lab: l, dir: filepath.Join(dir, "switch"), init: s.Switch}
	return l, nil
}

// Attach finds the lab that another process brought up in dir. It still ends
// with the owner it was made with.
func Attach(dir string) (*Lab, error) {
	l, err := load(dir)
	if err == nil && !l.Switch.init.alive() {
		err = errors.New("it has ended")
	}
	if err != nil {
		return nil, fmt.Errorf("attach to lab %s: %w", dir, err)
	}
	return l, nil
}

// Down ends whatever lab is or was in dir and removes the folder; a folder that
// is absent is fine, one that no lab made is refused.
func Down(dir string) error {
	l, err := load(dir)
	switch {
	case errors.Is(err, os.ErrNotExist):
		if !exists(dir) {
			return nil
		}
		return fmt.Errorf("take down lab %s: the folder is there, but no lab.json in it", dir)
	case err != nil:
		return fmt.Errorf("take down lab: %w", err)
	}
	return l.Down()
}

// clear removes a dead lab from dir, and refuses a living one and a folder that
// holds something else.
func clear(dir string) error {
	l, err := load(dir)
	if errors.Is(err, os.ErrNotExist) {
		entries, err := os.ReadDir(dir)
		if err == nil && len(entries) > 0 {
			return errors.New("the folder is not empty and holds no lab")
		} else if err != nil && !os.IsNotExist(err) {
			return err
		}
		return nil
	} else if err != nil {
		return err
	}
	if l.Switch.init.alive() && (l.owner.PID == 0 || l.owner.alive()) {
		return fmt.Errorf("a lab is up there already (its owner is process %d, 0 meaning detached); take it down first", l.owner.PID)
	}
	return l.Down()
}

// remove deletes the lab's folder. Nothing is mounted in it here: every mount
// was in a namespace that has ended. A file that a dying process was still
// writing may appear while we delete, hence a second try.
func remove(dir string) error {
	var err error
	for range 5 {
		if err = os.RemoveAll(dir); err == nil {
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return err
}
