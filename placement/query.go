package placement

import (
	"slices"
	"strconv"
	"strings"
)

// amount is an amount of a class, in the order a request gave it.
type amount struct {
	class string
	n     int64
}

// parseResources reads "VCPU:2,MEMORY_MB:1024".
func parseResources(qs string) ([]amount, error) {
	const form = "Badly formed resources parameter. Expected resources query string parameter in form: ?resources=VCPU:2,MEMORY_MB:1024. Got: %s"
	if strings.TrimSpace(qs) == "" {
		return nil, badRequest(form, "empty string.")
	}
	var out []amount
	for part := range strings.SplitSeq(qs, ",") {
		if len(out) == maxClasses {
			return nil, badRequest("a request group may ask for %d resource classes", maxClasses)
		}
		class, number, found := strings.Cut(part, ":")
		if !found || strings.Contains(number, ":") {
			return nil, badRequest(form, part+".")
		}
		n, err := strconv.ParseInt(strings.TrimSpace(number), 10, 64)
		if err != nil {
			return nil, badRequest("Requested resource %s expected positive integer amount. Got: %s.", class, number)
		}
		if n < 1 {
			return nil, badRequest("Requested resource %s requires amount >= 1. Got: %d.", class, n)
		}
		if i := slices.IndexFunc(out, func(a amount) bool { return a.class == class }); i >= 0 {
			out[i].n = n
		} else {
			out = append(out, amount{class, n})
		}
	}
	return out, nil
}

// traits reads every value of a traits parameter: sets of which one each is
// required, and the forbidden ones. Forbidding came with 1.22, "in:" and
// repeating the parameter with 1.39; before that the last one counted.
func (r *request) traits(key string) (required [][]string, forbidden []string, err error) {
	values := r.all(key)
	if r.version < 39 && len(values) > 1 {
		values = values[len(values)-1:]
	}
	for _, v := range values {
		req, forb, err := parseTraits(v, r.version >= 22, r.version >= 39)
		if err != nil {
			return nil, nil, err
		}
		required = append(required, req...)
		forbidden = append(forbidden, forb...)
	}
	return required, forbidden, nil
}

func parseTraits(v string, allowForbidden, allowAny bool) (required [][]string, forbidden []string, err error) {
	const bad = "Invalid query string parameters: "
	if list, any := strings.CutPrefix(v, "in:"); any {
		if !allowAny {
			return nil, nil, badRequest(bad+"The format 'in:HW_CPU_X86_VMX,CUSTOM_MAGIC' only supported since microversion 1.39. Got: %s", v)
		}
		set := trimmed(list)
		if slices.Contains(set, "") {
			return nil, nil, badRequest(bad+"Expected 'required' parameter value of the form: in:HW_CPU_X86_VMX,CUSTOM_MAGIC. Got an empty trait in: %s", v)
		}
		if slices.ContainsFunc(set, func(s string) bool { return strings.HasPrefix(s, "!") }) {
			return nil, nil, badRequest(bad+"The format 'in:HW_CPU_X86_VMX,CUSTOM_MAGIC' does not support forbidden traits. Got: %s", v)
		}
		return [][]string{set}, nil, nil
	}
	form := "HW_CPU_X86_VMX,CUSTOM_MAGIC"
	if allowForbidden {
		form = "HW_CPU_X86_VMX,!CUSTOM_MAGIC"
	}
	for _, name := range trimmed(v) {
		bare := strings.TrimLeft(name, "!")
		if bare == "" {
			return nil, nil, badRequest(bad+"Expected 'required' parameter value of the form: %s. Got an empty trait in: %s", form, v)
		}
		if bare == name {
			required = append(required, []string{name})
		} else {
			forbidden = append(forbidden, bare)
		}
	}
	if len(forbidden) > 0 && !allowForbidden {
		return nil, nil, badRequest(bad+"Expected 'required' parameter value of the form: HW_CPU_X86_VMX,CUSTOM_MAGIC. Got: %s", v)
	}
	return required, forbidden, nil
}

func trimmed(list string) []string {
	parts := strings.Split(list, ",")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return parts
}

// memberOf reads every member_of of a group: sets of aggregates to be in one of
// each, and forbidden ones.
func (r *request) memberOf(suffix string) (required [][]string, forbidden []string, err error) {
	values := r.all("member_of" + suffix)
	if r.version < 24 && len(values) > 1 {
		return nil, nil, badRequest("Multiple member_of%s parameters are not supported", suffix)
	}
	for _, v := range values {
		if strings.Contains(v, ",") && !strings.HasPrefix(v, "in:") && !strings.HasPrefix(v, "!in:") {
			return nil, nil, badRequest("Multiple values for 'member_of' must be prefixed with the 'in:' or '!in:' keyword using the valid microversion. Got: %s", v)
		}
		list, not := strings.CutPrefix(v, "!")
		list, _ = strings.CutPrefix(list, "in:")
		set := strings.Split(list, ",")
		for _, a := range set {
			if canonicalUUID(a) == "" {
				return nil, nil, badRequest("Invalid query string parameters: Expected 'member_of' parameter to contain valid UUID(s). Got: %s", a)
			}
		}
		switch {
		case !not:
			required = append(required, set)
		case r.version < 32:
			return nil, nil, badRequest("Forbidden member_of%s parameters are not supported in the specified microversion", suffix)
		default:
			forbidden = append(forbidden, set...)
		}
	}
	return required, forbidden, nil
}
