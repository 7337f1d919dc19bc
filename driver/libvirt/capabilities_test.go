package libvirt

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/driver"
	"berth/internal/fault"
	"berth/topology"
)

var update = flag.Bool("update", false, "write what was read as what is wanted")

// answers is a daemon whose documents are files: host.xml, one of domain
// capabilities for each machine type, and expanded.xml.
type answers struct {
	Conn
	t   *testing.T
	dir string
	// lost, refused and failed are what calls answer instead, by their name.
	lost, refused, failed string
	compare               func(CPU) error
	expand                map[string]string // by the element's model
}

func (a answers) file(call, name string) (string, error) {
	switch {
	case call == "":
	case call == a.lost:
		return "", ErrLost
	case call == a.refused:
		return "", code(errNoSupport)
	case call == a.failed:
		return "", code(errInternal)
	}
	text, err := os.ReadFile(filepath.Join("testdata", "capabilities", a.dir, name+".xml"))
	if errors.Is(err, fs.ErrNotExist) {
		return "", code(errOperationUnsupported)
	}
	return string(text), err
}

func (a answers) Hostname() (string, error)     { return "host-a", nil }
func (a answers) Type() (string, error)         { return "QEMU", nil }
func (a answers) Version() (uint64, error)      { return 10_000_002, nil }
func (a answers) LibVersion() (uint64, error)   { return 9_000_000, nil }
func (a answers) Capabilities() (string, error) { return a.file("Capabilities", "host") }
func (a answers) CompareCPU(c CPU, flags uint32) error {
	if flags != compareFailIncompatible {
		a.t.Errorf("compared with flags %d", flags)
	}
	return a.compare(c)
}

func (a answers) DomainCapabilities(emulator, arch, machine, virtType string, _ uint32) (string, error) {
	text, err := a.file("DomainCapabilities", machine)
	if err == nil && !(strings.Contains(text, "<path>"+emulator+"<") && strings.Contains(text, "<arch>"+arch+"<") && strings.Contains(text, "<domain>"+virtType+"<")) {
		a.t.Errorf("asked for %s of %s, %s with %s", machine, emulator, arch, virtType)
	}
	return text, err
}

func (a answers) BaselineHypervisorCPU(_ CPU, cpus []string, flags uint32) (string, error) {
	if flags != baselineExpandFeatures || len(cpus) != 1 {
		a.t.Errorf("baseline of %d with flags %d", len(cpus), flags)
	}
	for model, text := range a.expand {
		if strings.Contains(cpus[0], ">"+model+"<") {
			return text, nil
		}
	}
	return a.file("BaselineHypervisorCPU", "expanded")
}

func (s *scripted) DomainCapabilities(_, _, _, _ string, _ uint32) (string, error) {
	return "", code(errNoSupport)
}

// TestNode_SaysWhatGuestsCanHave reads the answers of an Intel and an AMD host, of
// an Arm host, and those of libvirt 9.0 with QEMU 10.0 and no KVM.
func TestNode_SaysWhatGuestsCanHave(t *testing.T) {
	for _, dir := range []string{"intel", "amd-sev", "aarch64", "tcg"} {
		t.Run(dir, func(t *testing.T) {
			n, err := node(answers{t: t, dir: dir})
			if err != nil || n.CapabilitiesError != "" {
				t.Fatal(err, n.CapabilitiesError)
			}
			got, err := json.MarshalIndent(n.Capabilities, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			golden := filepath.Join("testdata", "capabilities", dir, "want.json")
			if *update {
				if err := os.WriteFile(golden, append(got, '\n'), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(got)+"\n"); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if strings.Contains(string(got), "null") {
				t.Error("a list that is empty is written as null")
			}
		})
	}
}

func TestNode_WithoutDomainCapabilities(t *testing.T) {
	n, err := node(answers{t: t, dir: "intel", refused: "DomainCapabilities"})
	if err != nil || n.Capabilities != nil || n.CapabilitiesError == "" || n.Arch != "x86_64" {
		t.Errorf("a daemon that does not tell: %+v, %v", n, err)
	}
	for _, call := range []string{"Capabilities", "DomainCapabilities", "BaselineHypervisorCPU"} {
		if _, err := node(answers{t: t, dir: "intel", lost: call}); !errors.Is(err, ErrLost) {
			t.Errorf("%s without an answer: %v, want that", call, err)
		}
	}
	for _, tt := range []struct {
		name string
		with answers
		told bool
	}{
		{"a daemon that expands no CPU", answers{refused: "BaselineHypervisorCPU"}, false},
		{"one that fails to", answers{failed: "BaselineHypervisorCPU"}, true},
		{"one whose answer makes no sense", answers{expand: map[string]string{"Skylake-Server-IBRS": "<cpu"}}, true},
	} {
		tt.with.t, tt.with.dir = t, "intel"
		n, err = node(tt.with)
		if err != nil || n.Capabilities == nil || len(n.Capabilities.CPU.Features) != 0 || n.Capabilities.CPU.Model != "Skylake-Server-IBRS" {
			t.Errorf("%s: %+v, %v", tt.name, n.Capabilities, err)
		}
		if told := n.CapabilitiesError != ""; told != tt.told {
			t.Errorf("%s: says %q", tt.name, n.CapabilitiesError)
		}
	}
}

func TestCompareCPU_NamesWhatIsMissing(t *testing.T) {
	incompatible := func(says string) func(CPU) error {
		return func(CPU) error { return &Error{Code: errCPUIncompatible, Message: says} }
	}
	const (
		guest    = "<cpu mode='custom' match='exact' check='full'><model fallback='forbid'>Icelake</model><vendor>Intel</vendor><feature policy='require' name='vmx'/><feature policy='disable' name='pku'/></cpu>"
		icelake  = "<cpu><model>Icelake</model><feature policy='require' name='sse'/><feature policy='disable' name='la57'/><feature policy='disable' name='avx512vbmi'/><feature policy='disable' name='pku'/><feature policy='require' name='vmx'/></cpu>"
		opteron  = "<cpu mode='custom'><model>Opteron</model><vendor>AMD</vendor></cpu>"
		opterons = "<cpu><model>Opteron</model><vendor>AMD</vendor><feature policy='require' name='sse'/></cpu>"
	)
	known := func(CPU) error { return nil }
	for _, tt := range []struct {
		name    string
		element string
		compare func(CPU) error
		refused string
		codes   []string
		wants   []string
	}{
		{name: "it fits", element: guest, compare: known},
		{
			name: "libvirt names them", element: guest, codes: []string{"cpu_feature_missing", "cpu_feature_missing"}, wants: []string{"pni", "sse4.2"},
			compare: incompatible("the CPU is incompatible with host CPU: Host CPU does not provide required features: pni, sse4.2"),
		},
		{
			name: "libvirt names none", element: guest, compare: incompatible("the CPU is incompatible with host CPU"),
			codes: []string{"cpu_feature_missing", "cpu_feature_missing"}, wants: []string{"avx512vbmi", "la57"},
		},
		{
			name: "another vendor", element: opteron, compare: incompatible("the CPU is incompatible with host CPU: vendor"),
			codes: []string{"cpu_vendor_differs"}, wants: []string{"AMD"},
		},
		{
			name: "nothing can be named", element: guest, compare: incompatible("the CPU is incompatible with host CPU"), refused: "BaselineHypervisorCPU",
			codes: []string{"cpu_incompatible"}, wants: []string{""},
		},
		{
			name: "a machine type that is not here", element: guest, codes: []string{"cpu_feature_missing"}, wants: []string{"vmx"},
			compare: func(c CPU) error {
				if c.Machine != "" {
					return code(errInvalidArg)
				}
				return incompatible("Host CPU does not provide required features: vmx")(c)
			},
		},
		{
			name: "a feature that the guest forbids", element: guest, codes: []string{"cpu_feature_forbidden"}, wants: []string{"no sse2"},
			compare: incompatible("the CPU is incompatible with host CPU: Host CPU provides forbidden features: sse2"),
		},
		{
			name: "a model of a newer libvirt", element: guest, codes: []string{"cpu_model_unknown"}, wants: []string{"Icelake"},
			compare: func(CPU) error {
				return &Error{Code: errInternal, Message: "internal error: Unknown CPU model Icelake"}
			},
		},
		{name: "an architecture whose CPUs libvirt does not compare", element: guest, compare: func(CPU) error { return code(errOperationUnsupported) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			conn := answers{t: t, dir: "intel", compare: tt.compare, refused: tt.refused, expand: map[string]string{"Icelake": icelake, "Opteron": opterons}}
			if tt.refused != "" {
				conn.expand = nil
			}
			err := compareCPU(conn, CPU{Emulator: "/usr/bin/qemu-system-x86_64", Arch: "x86_64", Machine: "q35", VirtType: "kvm", XML: tt.element})
			var codes, wants []string
			for _, r := range fault.ReasonsOf(err) {
				codes, wants = append(codes, r.Code), append(wants, r.Want)
				if r.Change == "" {
					t.Errorf("%+v does not say what would have to change", r)
				}
			}
			if !slices.Equal(codes, tt.codes) || !slices.Equal(wants, tt.wants) {
				t.Errorf("reasons %q of %q, want %q of %q (%v)", codes, wants, tt.codes, tt.wants, err)
			}
			if (err == nil) != (tt.codes == nil) || err != nil && !errors.Is(err, fault.DoesNotFit) {
				t.Errorf("refusal %v", err)
			}
		})
	}
	lost := answers{t: t, dir: "intel", compare: func(CPU) error { return ErrLost }}
	if err := compareCPU(lost, CPU{Machine: "q35"}); !errors.Is(err, ErrLost) {
		t.Errorf("no answer: %v", err)
	}
	odd := answers{t: t, dir: "intel", compare: func(CPU) error { return code(errInvalidArg) }}
	if err := compareCPU(odd, CPU{Machine: "q35"}); codeOf(err) != errInvalidArg {
		t.Errorf("what libvirt does not understand: %v", err)
	}
}

func TestNode_NamesTheHostsOwnFeaturesApart(t *testing.T) {
	n := driver.Node{Hypervisor: "QEMU"}
	text, err := answers{dir: "intel"}.file("", "host")
	if err != nil {
		t.Fatal(err)
	}
	side, err := readHost(&n, text)
	if err != nil {
		t.Fatal(err)
	}
	want := topology.HypervisorCPU{Model: "Skylake-Server-IBRS", Vendor: "Intel", Features: []string{"acpi", "ds", "invtsc", "smx", "tm2", "vmx"}}
	if diff := cmp.Diff(want, side.host); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestReadHost_OnlyQEMUIsEmulated(t *testing.T) {
	const host = "<capabilities><host><cpu><arch>x86_64</arch></cpu></host><guest><os_type>hvm</os_type><arch name='x86_64'><domain type='test'/></arch></guest></capabilities>"
	for hypervisor, want := range map[string]bool{"QEMU": true, "TEST": false} {
		n := driver.Node{Hypervisor: hypervisor}
		if _, err := readHost(&n, host); err != nil || n.Emulated != want {
			t.Errorf("%s: emulated %v, want %v (%v)", hypervisor, n.Emulated, want, err)
		}
	}
}

func TestReadGuests_ClaimsNoMoreThanIsTold(t *testing.T) {
	arm := guestSide{virtType: "qemu", host: topology.HypervisorCPU{Model: "Neoverse-N1", Features: []string{"sve"}}}
	if c, err := readGuests("aarch64", arm, nil); err != nil || c.CPU.Model != "" || len(c.CPU.Features) > 0 {
		t.Errorf("emulated guests have the CPU of the host: %+v, %v", c.CPU, err)
	}
	const sev = "<domainCapabilities><features><sev supported='yes'><maxGuests>15</maxGuests><maxESGuests>0</maxESGuests></sev></features></domainCapabilities>"
	if c, err := readGuests("x86_64", guestSide{virtType: "kvm"}, []string{sev}); err != nil || !c.SEV.SEV || c.SEV.ES || c.SEV.MaxGuests != 15 {
		t.Errorf("SEV without room for encrypted state: %+v, %v", c.SEV, err)
	}
}

// TestNode_IsAskedOnceForEachConnectionAndQEMU holds the cost of a check down.
func TestNode_IsAskedOnceForEachConnectionAndQEMU(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &counting{qemu: 10_000_002}
		l := New(Options{Dial: func(context.Context, Target) (Conn, error) {
			return &counted{answers: answers{t: t, dir: "intel"}, n: d, done: make(chan struct{})}, nil
		}, Logger: slog.New(slog.DiscardHandler)})
		defer func() {
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		}()
		want := 0
		for _, step := range []struct {
			name   string
			before func()
			asks   bool
		}{
			{"the first time", func() {}, true},
			{"again", func() {}, false},
			{"after a new QEMU", func() { d.qemu = 10_001_000 }, true},
			{"again", func() {}, false},
			{"on a new connection", l.control.retire, true},
			{"a minute later", func() { time.Sleep(capabilitiesAge) }, true},
			{"again", func() {}, false},
			{"when a part cannot be told", func() { time.Sleep(capabilitiesAge); d.fails = true }, true},
			{"after a part", func() { d.fails = false }, true},
			{"again", func() {}, false},
		} {
			step.before()
			if step.asks {
				want++
			}
			n, err := l.Node(t.Context())
			if err != nil || n.Capabilities == nil || n.HypervisorVersion != driver.Version(d.qemu) {
				t.Fatalf("%s: %+v, %v", step.name, n, err)
			}
			if d.asked != want {
				t.Errorf("%s: capabilities were asked for %d times, want %d", step.name, d.asked, want)
			}
		}
	})
}

type counting struct {
	qemu  uint64
	asked int
	fails bool // to expand a CPU
}

// counted is a connection to a daemon that counts.
type counted struct {
	answers
	n    *counting
	once sync.Once
	done chan struct{}
}

func (c *counted) Done() <-chan struct{}                    { return c.done }
func (c *counted) Close()                                   { c.once.Do(func() { close(c.done) }) }
func (c *counted) Subscribe(func(Event)) error              { return nil }
func (c *counted) SubscribeDevices(func(DeviceEvent)) error { return nil }
func (c *counted) BaselineHypervisorCPU(where CPU, cpus []string, flags uint32) (string, error) {
	if c.n.fails {
		return "", code(errInternal)
	}
	return c.answers.BaselineHypervisorCPU(where, cpus, flags)
}
func (c *counted) Version() (uint64, error)      { return c.n.qemu, nil }
func (c *counted) Capabilities() (string, error) { c.n.asked++; return c.answers.Capabilities() }
