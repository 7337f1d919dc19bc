package libvirt

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"libvirt.org/go/libvirtxml"

	"berth/driver/libvirt/domainxml"
	"berth/internal/fault"
)

// Flags of virConnectCompareHypervisorCPU and virConnectBaselineHypervisorCPU
// (libvirt-host.h).
const (
	compareFailIncompatible = 1 << 0
	baselineExpandFeatures  = 1 << 0
)

// What libvirt names in its refusals (src/cpu/cpu_x86.c): "Host CPU does not
// provide required features: vmx, avx512f", "Host CPU provides forbidden features:
// sse2", and, of a guest from a newer libvirt, "Unknown CPU model X", "Unknown CPU
// feature x".
var (
	lacking   = regexp.MustCompile(`required features: ([A-Za-z0-9._, -]+)`)
	forbidden = regexp.MustCompile(`forbidden features: ([A-Za-z0-9._, -]+)`)
	unknown   = regexp.MustCompile(`Unknown CPU (model|feature) ([A-Za-z0-9._-]+)`)
)

// otherCPU is what has to change where a host's CPU has not what a guest's has.
const otherCPU = "name a host with such a CPU, or start the guest with a CPU model that both have"

// CheckCPU implements driver.LiveMigrator by virConnectCompareHypervisorCPU. A
// guest with mode host-passthrough or maximum names no features: its CPU is its
// host's, and the hosts are compared (topology.HypervisorCPU.Lacks).
func (d *Driver) CheckCPU(ctx context.Context, domainXML string) error {
	doc, err := domainxml.Parse(domainXML)
	if err != nil {
		return fault.New(fault.Invalid, "check cpu: %w", err)
	}
	element, ok := doc.CPU()
	if !ok {
		return nil
	}
	c := CPU{Emulator: doc.Emulator(), Arch: doc.Arch(), Machine: doc.Machine(), VirtType: doc.Type(), XML: element}
	return run(ctx, d.control, request{verb: "compare cpu"}, func(conn Conn) error { return compareCPU(conn, c) })
}

func compareCPU(conn Conn, guest CPU) error {
	err := conn.CompareCPU(guest, compareFailIncompatible)
	if code := codeOf(err); code != 0 && code != errCPUIncompatible && code != errOperationUnsupported && (guest.Machine != "" || guest.Emulator != "") {
		// A machine type or an emulator that is not here is told by others; what the
		// CPU lacks does not depend on them.
		bare := guest
		bare.Machine, bare.Emulator = "", ""
		if again := conn.CompareCPU(bare, compareFailIncompatible); again == nil || codeOf(again) == errCPUIncompatible {
			guest, err = bare, again
		}
	}
	switch codeOf(err) {
	case errCPUIncompatible:
		return fault.Refuse(fault.DoesNotFit, "compare cpu", incompatible(conn, guest, err)...)
	case errOperationUnsupported:
		// libvirt compares the CPUs of x86 and s390 alone. Elsewhere it says at the
		// start what it cannot give, before any memory has moved.
		return nil
	case errInternal:
		if found := unknown.FindStringSubmatch(err.Error()); found != nil {
			return fault.Refuse(fault.DoesNotFit, "compare cpu", fault.Reason{
				Code: "cpu_" + found[1] + "_unknown", Message: "cpu " + found[1] + " " + found[2] + " is unknown to libvirt", Want: found[2], Change: "upgrade libvirt there",
			})
		}
	}
	return err
}

// incompatible names what stands against a CPU. libvirt names features, but only
// where it came to compare them; else what a guest can have here is held against
// what this one has. That only names: the refusal is libvirt's.
func incompatible(conn Conn, guest CPU, refusal error) []fault.Reason {
	missing := names(lacking, refusal)
	var reasons []fault.Reason
	for _, f := range names(forbidden, refusal) {
		reasons = append(reasons, fault.Reason{
			Code: "cpu_feature_forbidden", Message: "cpu feature " + f + " is there, and the guest forbids it", Want: "no " + f, Have: f,
			Change: "let the guest's CPU be without it by policy disable, not forbid",
		})
	}
	if missing == nil && reasons == nil {
		missing, reasons = difference(conn, guest)
	}
	for _, f := range missing {
		reasons = append(reasons, fault.Reason{Code: "cpu_feature_missing", Message: "cpu feature " + f + " is missing", Want: f, Change: otherCPU})
	}
	if reasons == nil {
		reasons = []fault.Reason{{Code: "cpu_incompatible", Message: refusal.Error(), Change: otherCPU}}
	}
	return reasons
}

func names(in *regexp.Regexp, refusal error) (out []string) {
	if found := in.FindStringSubmatch(refusal.Error()); found != nil {
		for f := range strings.SplitSeq(found[1], ",") {
			out = append(out, strings.TrimSpace(f))
		}
	}
	return out
}

// difference gives the features of a guest that none can have here, and the
// vendors when they differ. What cannot be asked is left out.
func difference(conn Conn, guest CPU) (missing []string, vendor []fault.Reason) {
	text, err := conn.DomainCapabilities(guest.Emulator, guest.Arch, guest.Machine, guest.VirtType, 0)
	if err != nil {
		return nil, nil
	}
	var caps libvirtxml.DomainCaps
	if caps.Unmarshal(text) != nil {
		return nil, nil
	}
	model, ok := hostModel(&caps)
	if !ok {
		return nil, nil
	}
	here, err := expand(conn, guest, model)
	if err != nil {
		return nil, nil
	}
	var want libvirtxml.DomainCPU
	if want.Unmarshal(guest.XML) != nil {
		return nil, nil
	}
	if want.Vendor != "" && here.Vendor != "" && want.Vendor != here.Vendor {
		vendor = []fault.Reason{{
			Code: "cpu_vendor_differs", Message: "the guest needs a CPU of " + want.Vendor + ", this one is of " + here.Vendor, Want: want.Vendor, Have: here.Vendor, Change: otherCPU,
		}}
	}
	all, err := expand(conn, guest, guest.XML)
	if err != nil {
		return nil, vendor
	}
	have := required(here)
	without := func(f libvirtxml.DomainCPUFeature) bool {
		return f.Policy == "disable" || f.Policy == "forbid"
	}
	off := map[string]bool{}
	for _, f := range want.Features {
		off[f.Name] = without(f)
	}
	for _, f := range all.Features {
		// What the model has and this host does not comes back as disabled; what the
		// guest itself does without is no loss.
		if !off[f.Name] && !slices.Contains(have, f.Name) {
			missing = append(missing, f.Name)
		}
	}
	return sortedSet(missing), vendor
}

// hostModel is the best CPU that guests of a machine can have, as an element;
// false where libvirt has no host-model.
func hostModel(caps *libvirtxml.DomainCaps) (string, bool) {
	if caps.CPU == nil {
		return "", false
	}
	for _, mode := range caps.CPU.Modes {
		if mode.Name != "host-model" || mode.Supported != "yes" || len(mode.Models) == 0 {
			continue
		}
		cpu := libvirtxml.DomainCPU{
			Mode: "custom", Match: "exact", Vendor: mode.Vendor,
			Model: &libvirtxml.DomainCPUModel{Fallback: mode.Models[0].Fallback, Value: mode.Models[0].Name},
		}
		for _, f := range mode.Features {
			cpu.Features = append(cpu.Features, libvirtxml.DomainCPUFeature(f))
		}
		text, err := cpu.Marshal()
		return text, err == nil
	}
	return "", false
}

// expand gives a CPU with every feature of its model named. Where the hypervisor
// cannot give one it says "disable".
func expand(conn Conn, where CPU, element string) (libvirtxml.DomainCPU, error) {
	var cpu libvirtxml.DomainCPU
	text, err := conn.BaselineHypervisorCPU(where, []string{element}, baselineExpandFeatures)
	if err != nil {
		return cpu, err
	}
	if err := cpu.Unmarshal(text); err != nil {
		return cpu, fmt.Errorf("expanded cpu: %w", err)
	}
	return cpu, nil
}

// required are the features that a CPU has, sorted.
func required(cpu libvirtxml.DomainCPU) []string {
	var out []string
	for _, f := range cpu.Features {
		if f.Policy == "require" || f.Policy == "force" || f.Policy == "" {
			out = append(out, f.Name)
		}
	}
	return sortedSet(out)
}
