package systemd_test

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

// directives are those of a unit's file: of each its values as they stand, and their words.
type directives map[string][]string

func readUnit(t *testing.T, unit string) (text string, has directives) {
	t.Helper()
	data, err := os.ReadFile(unit)
	if err != nil {
		t.Fatal(err)
	}
	has = directives{}
	for line := range strings.Lines(string(data)) {
		if name, value, is := strings.Cut(strings.TrimSpace(line), "="); is && !strings.HasPrefix(name, "#") {
			has[name] = append(append(has[name], value), strings.Fields(value)...)
		}
	}
	return string(data), has
}

// line is one that a unit must have, or with an empty value a directive that it must not have.
type line struct{ directive, value, why string }

const (
	libvirtd  = "libvirtd comes and goes, and takes nobody of Berth with it"
	agents    = "the agent is stopped and upgraded while guests run and move"
	goingDown = "on the way down guests are libvirt-guests' business, and need this until it is through"
	everyDisk = "guests' disks lie wherever the operator keeps them, and may be devices"
)

// unitLines is what the units promise operators, line by line.
var unitLines = map[string][]line{
	"berth.service": {
		{"Wants", "berth.socket", "a start by hand brings the socket back"},
		{"After", "libvirtd.service", libvirtd + "; what is started with it is stopped before it"},
		{"After", "virtqemud.service", "the same, where libvirt is many daemons"},
		{"After", "dbus.service", "logind is asked to wait over it"},
		{"After", "berth-placement.service", "its claims are reported there until its own end"},
		{"Before", "libvirt-guests.service", goingDown},
		{"StartLimitIntervalSec", "0", "a host without its agent is nobody's"},
		{"Type", "notify", "a start is over when requests are answered"},
		{"ExecReload", "/bin/kill -HUP $MAINPID", "systemd 252 has no notify-reload"},
		{"Restart", "always", "a host without its agent is nobody's"},
		{"RestartPreventExitStatus", "2", "a wrong configuration stays wrong"},
		{"RestartPreventExitStatus", "3", "a refused mode stays refused"},
		{"Environment", "GOTRACEBACK=crash", "a panic would end with 2, and not be restarted"},
		{"WatchdogSec", "60", "loops that stand are ended"},
		{"KillMode", "process", "what the agent has started to ask for something ends by itself"},
		{"StateDirectory", "berth", "ledger and journal"},
		{"StateDirectoryMode", "0700", "it is root's alone"},
		{"RuntimeDirectory", "berth", "socket and owner files"},
		{"RuntimeDirectoryPreserve", "yes", "the hook reads owner files while the agent is down"},
		{"LimitCORE", "0", "a dump would hold the host's key"},
		{"Also", "berth.socket", "who enables one enables both"},
		{"Requires", "", libvirtd},
		{"Requisite", "", libvirtd},
		{"BindsTo", "", libvirtd},
		{"PartOf", "", libvirtd},
		{"StopPropagatedFrom", "", libvirtd},
		{"PropagatesStopTo", "", "a stop of the agent stops nobody else"},
		{"Conflicts", "", "a start of the agent stops nobody else"},
		{"ExecStop", "", agents},
		{"ExecStopPost", "", agents},
		{"ProtectHome", "", everyDisk},
		{"PrivateTmp", "", everyDisk},
		{"PrivateDevices", "", everyDisk},
	},
	"berth-stream@.service": {
		{"Before", "libvirt-guests.service", goingDown},
		{"Type", "notify", "who starts it may use it then"},
		{"Restart", "no", "QEMU has seen the end of one that is lost"},
		{"CollectMode", "inactive-or-failed", "units of moves that are over do not pile up"},
		{"ReadWritePaths", "/run/berth/streams", "its sockets lie there"},
		{"LimitCORE", "0", "a dump would hold the host's key and a guest's memory"},
		{"Requires", "", agents},
		{"Requisite", "", agents},
		{"BindsTo", "", agents},
		{"PartOf", "", agents},
		{"StopPropagatedFrom", "", agents},
		{"RuntimeDirectory", "", "it would be removed with the first stream that ends"},
		{"RuntimeMaxSec", "", "a move takes as long as it takes"},
	},
	"berth-placement.service": {
		{"Type", "notify", "a start is over when requests are answered"},
		{"User", "berth-placement", "it has a port, a file and nothing else"},
		{"StartLimitIntervalSec", "0", "agents wait for it, for as long as it takes"},
		{"Restart", "always", "agents wait for it, for as long as it takes"},
		{"RestartPreventExitStatus", "2", "a wrong option stays wrong"},
		{"RestartPreventExitStatus", "3", "a refused option stays refused"},
		{"Environment", "GOTRACEBACK=crash", "a panic would end with 2, and not be restarted"},
		{"StateDirectory", "berth-placement", "its database"},
		{"StateDirectoryMode", "0700", "its database is nobody else's"},
		{"Requires", "", agents},
		{"BindsTo", "", agents},
		{"PartOf", "", agents},
	},
	"berth.socket": {
		{"ListenStream", "/run/berth/berth.sock", "where every command looks"},
		{"FileDescriptorName", "api", "by it the agent knows what it was given"},
		{"SocketGroup", "berth", "operators who are not root"},
		{"SocketMode", "0660", "nobody else"},
		{"WantedBy", "sockets.target", "it is there before the agent"},
		{"RemoveOnStop", "", "who connects over a restart finds it"},
		{"Requires", "", "a request over a restart waits"},
		{"BindsTo", "", "a request over a restart waits"},
		{"PartOf", "", "a request over a restart waits"},
	},
}

// missing says which of its lines a unit breaks.
func missing(lines []line, has directives) (out []string) {
	for _, l := range lines {
		values, there := has[l.directive]
		if l.value == "" && there || l.value != "" && !slices.Contains(values, l.value) {
			out = append(out, fmt.Sprintf("%s=%s: it has %q; want %q: %s", l.directive, l.value, values, l.value, l.why))
		}
	}
	return out
}

// TestUnits_KeepWhatTheyPromise holds each unit against its lines, and then each line against the
// unit that breaks it.
func TestUnits_KeepWhatTheyPromise(t *testing.T) {
	for unit, lines := range unitLines {
		_, has := readUnit(t, unit)
		for _, broken := range missing(lines, has) {
			t.Errorf("%s: %s", unit, broken)
		}
		for _, l := range lines {
			other := maps.Clone(has)
			if l.value == "" {
				other[l.directive] = []string{"libvirtd.service"}
			} else {
				other[l.directive] = slices.DeleteFunc(slices.Clone(has[l.directive]), func(v string) bool { return v == l.value })
			}
			if len(missing(lines, other)) == 0 {
				t.Errorf("%s: nobody misses %s=%s", unit, l.directive, l.value)
			}
		}
	}
}

// unexplained are the exceptions of a unit without a remark: what the strictest of the services
// has of a sandbox and this one has not, and what this one has otherwise.
func unexplained(text, strict string) (out []string) {
	sandbox := func(text string) string {
		_, text, _ = strings.Cut(text, "\n# Hardening.")
		text, _, _ = strings.Cut(text, "\n[Install]")
		return text + "\n"
	}
	hardening, norm := sandbox(text), sandbox(strict)
	var lines []string
	remarks, remarked := "", false
	for l := range strings.Lines(hardening) {
		l = strings.TrimSpace(l)
		name, value, is := strings.Cut(l, "=")
		switch {
		case strings.HasPrefix(l, "#"):
			remarks, remarked = remarks+l+"\n", true
		case is:
			// What is given of devices stands under the remark of what is taken.
			if !remarked && name != "DeviceAllow" && !strings.Contains(norm, "\n"+l+"\n") {
				out = append(out, "no remark stands before "+l)
			}
			lines, remarked = append(lines, l), false
			for _, what := range parts(name, value) {
				if !strings.Contains(norm, what) && !strings.Contains(remarks, strings.TrimPrefix(what, "CAP_")) {
					out = append(out, l+": no remark so far names "+what)
				}
			}
		default:
			remarked = false
		}
	}
	for l := range strings.Lines(norm) {
		name, _, is := strings.Cut(l, "=")
		has := slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, name+"=") })
		if is && !strings.HasPrefix(l, "#") && !has && !strings.Contains(remarks, name) {
			out = append(out, "it has no "+name+", and no remark names that")
		}
	}
	if !strings.Contains(text, "\nUser=") && !strings.Contains(remarks, "Exception: root.") {
		out = append(out, "it is root, and no remark says why")
	}
	return out
}

// parts are what a line gives of capabilities, kinds of sockets and devices, in a remark's words.
func parts(name, value string) (out []string) {
	for _, w := range strings.Fields(value) {
		switch {
		case name == "CapabilityBoundingSet" && strings.HasPrefix(w, "CAP_DAC_"):
			out = append(out, "DAC_")
		case name == "CapabilityBoundingSet", name == "RestrictAddressFamilies":
			out = append(out, w)
		case name == "DeviceAllow":
			return []string{strings.TrimSuffix(strings.TrimPrefix(strings.TrimPrefix(w, "/dev/"), "char-"), "-*")}
		}
	}
	return out
}

// What takes protection away from a service, or is left out of what the strictest of them has,
// is told why. Each reason is then taken away, and must be missed.
func TestUnits_SayWhyTheyMakeAnException(t *testing.T) {
	strict, _ := readUnit(t, "berth-placement.service")
	for unit, reasons := range map[string][]string{
		"berth.service": {
			"# Exception: disks of guests, and", "# AF_NETLINK: ", "# Exception: /usr, /boot and /etc", "ProtectHome", "PrivateTmp", "no PrivateDevices", "PrivateUsers",
			"RemoveIPC", "block devices", "watchdog that", "(CHOWN,", "DAC_*", "FOWNER)", "(LEASE)", "(SYS_PTRACE)", "# Exception: root.",
		},
		"berth-stream@.service": {"PrivateUsers", "RemoveIPC", "(DAC_OVERRIDE", " CHOWN)", "# Exception: the sockets by", "# Exception: not @resources", "# Exception: its sockets are"},
	} {
		text, _ := readUnit(t, unit)
		for _, fault := range unexplained(text, strict) {
			t.Errorf("%s: %s", unit, fault)
		}
		for _, reason := range reasons {
			var kept []string
			for l := range strings.Lines(text) {
				switch {
				case !strings.Contains(l, reason) || !strings.HasPrefix(l, "#"):
					kept = append(kept, l)
				case !strings.HasPrefix(reason, "#"): // a word is taken out, a remark goes whole
					kept = append(kept, strings.ReplaceAll(l, reason, ""))
				}
			}
			if len(unexplained(strings.Join(kept, ""), strict)) == 0 {
				t.Errorf("%s: nobody misses %q", unit, reason)
			}
		}
	}
}
