package flavor

import (
	"maps"
	"regexp"
	"slices"

	"berth/topology"
)

// The words of the policies.
var (
	cpuPolicies      = []string{"dedicated", "mixed", "shared"}
	threadPolicies   = []string{"prefer", "isolate", "require"}
	emulatorPolicies = []string{"isolate", "share"}
	pciAffinities    = []string{"legacy", "preferred", "required", "socket"}
)

// policies are the choices that stage one makes of words before it looks at
// cells. A choice whose words were at fault is not known, and nothing is held
// against it.
type policies struct {
	cpu      topology.CPUPolicy
	cpuKnown bool

	threads      topology.ThreadPolicy
	threadsKnown bool
	threadsBlank bool // hw:cpu_thread_policy is there with no word in it, and decides

	emulator      topology.EmulatorPolicy
	emulatorKnown bool

	// nil: not asked for
	realtime      topology.CPUSet
	realtimeKnown bool
	dedicated     topology.CPUSet
	maskKnown     bool // hw:cpu_dedicated_mask
}

// policies reads the words in Nova's order.
func (r *reader) policies(img imageWords) policies {
	var p policies
	p.cpu, p.cpuKnown = r.cpuPolicy(img)
	p.threads, p.threadsBlank, p.threadsKnown = r.threadPolicy(img)
	var emulator Errors // noted where Nova first looks
	p.emulator, emulator = r.emulatorPolicy()
	p.emulatorKnown = len(emulator) == 0
	p.realtime, p.realtimeKnown = r.realtimeMask(p, &emulator)
	p.dedicated, p.maskKnown = r.dedicatedMask()
	r.errs = append(r.errs, emulator...)
	r.resources(&p)
	r.hyperthreading(&p)
	r.agree(&p)
	return p
}

func (r *reader) cpuPolicy(img imageWords) (topology.CPUPolicy, bool) {
	const key = "hw:cpu_policy"
	asked := r.specs[key]
	if asked != "" && !slices.Contains(cpuPolicies, asked) {
		r.fault(key, "cpu_policy_unknown", "InvalidCPUAllocationPolicy", "%s: want one of %v", quote(asked), cpuPolicies)
		return "", false
	}
	switch {
	case asked == "":
		return topology.CPUPolicy(img.cpuPolicy), !img.cpuPolicyBad
	case asked == "mixed" && img.cpuPolicy == "dedicated",
		asked == "shared" && (img.cpuPolicy == "mixed" || img.cpuPolicy == "dedicated"):
		r.fault("hw_cpu_policy", "cpu_policy_conflict", "ImageCPUPinningForbidden",
			"the image asks for %q, which the flavor's %s=%s does not allow", img.cpuPolicy, key, asked)
		return "", false
	}
	return topology.CPUPolicy(asked), true
}

func (r *reader) threadPolicy(img imageWords) (policy topology.ThreadPolicy, blank, known bool) {
	const key = "hw:cpu_thread_policy"
	asked, there := r.specs[key]
	if asked != "" && !slices.Contains(threadPolicies, asked) {
		r.fault(key, "cpu_thread_policy_unknown", "InvalidCPUThreadAllocationPolicy", "%s: want one of %v", quote(asked), threadPolicies)
		return "", false, false
	}
	switch {
	case !there:
		return topology.ThreadPolicy(img.threadPolicy), false, !img.threadPolicyBad
	case asked == "prefer": // Nova takes it before the image's word, although it lets the image have one
		return topology.ThreadPolicyPrefer, false, true
	case img.threadPolicy != "" && img.threadPolicy != asked:
		r.fault("hw_cpu_thread_policy", "cpu_thread_policy_conflict", "ImageCPUThreadPolicyForbidden",
			"the image asks for %q, which the flavor's %s=%s does not allow", img.threadPolicy, key, asked)
		return "", false, false
	}
	return topology.ThreadPolicy(asked), asked == "", true
}

func (r *reader) emulatorPolicy() (topology.EmulatorPolicy, Errors) {
	const key = "hw:emulator_threads_policy"
	asked := r.specs[key]
	if asked != "" && !slices.Contains(emulatorPolicies, asked) {
		var bad reader
		bad.fault(key, "emulator_threads_policy_unknown", "InvalidEmulatorThreadsPolicy", "%s: want one of %v", quote(asked), emulatorPolicies)
		return "", bad.errs
	}
	return topology.EmulatorPolicy(asked), nil
}

// realtimeMask gives the realtime vCPUs, nil when realtime is not asked for. It
// notes the emulator policy's fault where Nova would meet it, and empties it.
func (r *reader) realtimeMask(p policies, emulator *Errors) (cpus topology.CPUSet, known bool) {
	if yes, _ := boolean(r.specs["hw:cpu_realtime"]); !yes {
		return nil, true
	}
	key, text := "hw_cpu_realtime_mask", r.image["hw_cpu_realtime_mask"]
	if text == "" { // the image's word goes before the flavor's
		key, text = "hw:cpu_realtime_mask", r.specs["hw:cpu_realtime_mask"]
	}
	m := mask{{0, int64(r.vcpus) - 1}}
	if text != "" {
		var err error
		if m, err = r.exclusive(text); err != nil {
			r.fault(key, "realtime_mask_malformed", "Invalid", "%v", err)
			return nil, false
		}
	}
	const nova = "RealtimeMaskNotFoundOrInvalid"
	if len(m) == 0 {
		r.fault(key, "realtime_mask_empty", nova, "%s leaves no vCPU for realtime", quote(text))
		return nil, false
	}
	r.errs = append(r.errs, *emulator...)
	*emulator = nil
	cpus = m.below(r.vcpus)
	beyond, out := m.beyond(r.vcpus)
	if !out && cpus.Len() == r.vcpus {
		if !p.emulatorKnown {
			return nil, false
		}
		if p.emulator == topology.EmulatorNone {
			r.fault(key, "realtime_mask_takes_all", nova,
				"all %d vCPUs are realtime: leave one out in hw:cpu_realtime_mask, or move the emulator threads with hw:emulator_threads_policy", r.vcpus)
			return nil, false
		}
	}
	if out {
		r.fault(key, "realtime_mask_out_of_range", nova, "vCPU %d is not one of the flavor's 0-%d", beyond, r.vcpus-1)
		return nil, false
	}
	return cpus, true
}

func (r *reader) dedicatedMask() (cpus topology.CPUSet, known bool) {
	const key = "hw:cpu_dedicated_mask"
	text := r.specs[key]
	if text == "" {
		return nil, true
	}
	m, err := r.exclusive(text)
	if err != nil {
		r.fault(key, "dedicated_mask_malformed", "Invalid", "%v", err)
		return nil, false
	}
	const nova = "InvalidMixedInstanceDedicatedMask"
	cpus = m.below(r.vcpus)
	beyond, out := m.beyond(r.vcpus)
	switch {
	case len(m) == 0:
		r.fault(key, "dedicated_mask_empty", nova, "%s leaves no dedicated vCPU: mixed wants at least one", quote(text))
	case cpus.Len() == r.vcpus:
		r.fault(key, "dedicated_mask_takes_all", nova, "%s leaves no shared vCPU: mixed wants at least one", quote(text))
	case out:
		r.fault(key, "dedicated_mask_out_of_range", nova, "vCPU %d is not one of the flavor's 0-%d", beyond, r.vcpus-1)
	default:
		return cpus, true
	}
	return nil, false
}

// Nova matches beginnings only, so that resources:VCPU_X counts too.
var (
	vcpuResource = regexp.MustCompile(`^resources([1-9][0-9]*)?:VCPU`)
	pcpuResource = regexp.MustCompile(`^resources([1-9][0-9]*)?:PCPU`)
	threadTrait  = regexp.MustCompile(`^trait([1-9][0-9]*)?:` + hyperthreadingTrait)
)

const hyperthreadingTrait = "HW_CPU_HYPERTHREADING"

// resources lets resources:VCPU and resources:PCPU stand for a policy.
func (r *reader) resources(p *policies) {
	var vcpus, pcpus int64
	var vcpuKey, pcpuKey string
	for _, key := range slices.Sorted(maps.Keys(r.specs)) {
		n, ok := integer(r.specs[key])
		switch {
		case !ok: // Placement's query refuses it elsewhere
		case vcpuResource.MatchString(key):
			vcpus, vcpuKey = topology.AddCapped(vcpus, n), key
		case pcpuResource.MatchString(key):
			pcpus, pcpuKey = topology.AddCapped(pcpus, n), key
		}
	}
	if vcpus == 0 && pcpus == 0 {
		return
	}
	key := vcpuKey
	if vcpus == 0 {
		key = pcpuKey
	}
	const nova = "InvalidRequest"
	clash := false
	if p.cpuKnown && p.cpu != "" {
		r.fault(key, "cpu_policy_twice", nova, "stands beside the CPU policy %q of hw:cpu_policy or hw_cpu_policy: use one of the two", p.cpu)
		clash = true
	}
	if vcpus != 0 && pcpus != 0 {
		r.fault(pcpuKey, "vcpu_and_pcpu", nova, "stands beside %s: use one of the two", vcpuKey)
		clash = true
	}
	if pcpus != 0 && p.emulatorKnown {
		want, why := int64(r.vcpus), "the flavor's vcpus"
		if p.emulator == topology.EmulatorIsolate {
			want, why = want+1, "the flavor's vcpus and one for hw:emulator_threads_policy=isolate"
		}
		if pcpus != want {
			r.fault(pcpuKey, "pcpu_mismatch", nova, "%d PCPU: want exactly %d, %s", pcpus, want, why)
		}
	}
	p.cpuKnown = p.cpuKnown && !clash
	p.cpu = topology.CPUPolicyDedicated
	if vcpus != 0 {
		p.cpu = topology.CPUPolicyShared
	}
}

// hyperthreading lets the trait stand for a thread policy.
func (r *reader) hyperthreading(p *policies) {
	key, word := "trait:"+hyperthreadingTrait, ""
	if r.image[key] == "required" {
		word = "required"
	}
	for _, k := range slices.Sorted(maps.Keys(r.specs)) {
		if threadTrait.MatchString(k) {
			key, word = k, r.specs[k]
			break
		}
	}
	if word == "" {
		return
	}
	if p.threadsKnown && p.threads != "" {
		r.fault(key, "cpu_thread_policy_twice", "InvalidRequest",
			"stands beside the thread policy %q of hw:cpu_thread_policy or hw_cpu_thread_policy: use one of the two", p.threads)
		p.threadsKnown = false
		return
	}
	switch word {
	case "forbidden":
		p.threads, p.threadsBlank = topology.ThreadPolicyIsolate, false
	case "required":
		p.threads, p.threadsBlank = topology.ThreadPolicyRequire, false
	}
}

// agree holds the choices against each other, and makes realtime vCPUs of a
// mixed guest its dedicated ones.
func (r *reader) agree(p *policies) {
	if !p.cpuKnown {
		return
	}
	const maskKey = "hw:cpu_dedicated_mask"
	switch p.cpu {
	case topology.CPUPolicyMixed:
		if p.realtimeKnown && p.maskKnown && p.realtime.IsEmpty() == p.dedicated.IsEmpty() {
			have := "neither is there"
			if !p.realtime.IsEmpty() {
				have = "both are there"
			}
			r.fault(maskKey, "mixed_needs_one_mask", "RequiredMixedOrRealtimeCPUMask",
				"the policy mixed takes its dedicated vCPUs from either hw:cpu_dedicated_mask or realtime's hw:cpu_realtime_mask: %s", have)
		}
		if p.dedicated.IsEmpty() {
			p.dedicated = p.realtime
		}
		return
	case topology.CPUPolicyNone, topology.CPUPolicyShared:
		if p.threadsKnown && p.threads != "" {
			r.fault("hw:cpu_thread_policy", "cpu_thread_policy_without_pinning", "CPUThreadPolicyConfigurationInvalid",
				"%q: wants hw:cpu_policy dedicated or mixed", p.threads)
		}
		if p.emulator == topology.EmulatorIsolate {
			r.fault("hw:emulator_threads_policy", "emulator_isolate_without_pinning", "BadRequirementEmulatorThreadsPolicy",
				"%q: wants hw:cpu_policy dedicated or mixed", p.emulator)
		}
	}
	if !p.dedicated.IsEmpty() {
		r.fault(maskKey, "dedicated_mask_without_mixed", "RequiredMixedInstancePolicy", "wants hw:cpu_policy mixed, have %q", p.cpu)
	}
	if !p.cpu.Pins() && !p.realtime.IsEmpty() {
		r.fault("hw:cpu_realtime", "realtime_without_pinning", "RealtimeConfigurationInvalid", "wants hw:cpu_policy dedicated or mixed")
	}
	if p.cpu == topology.CPUPolicyDedicated {
		p.dedicated = r.allVCPUs()
	}
}
