package hwdiscovery

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"berth/topology"
)

// parseMask reads the kernel's CPU mask: groups of 32 bits in hexadecimal, the
// highest first, "0000,00000011,11111111" (bitmap_print_to_pagebuf). Every group
// but the first has eight digits.
func parseMask(text string) (topology.CPUSet, error) {
	const most = (topology.MaxCPU + 1) / 32
	text = strings.TrimSpace(text)
	if len(text) > 9*most {
		return nil, fmt.Errorf("mask of %d bytes is too long", len(text))
	}
	groups := strings.Split(text, ",")
	var cpus topology.CPUSet
	for i := range groups {
		g := groups[len(groups)-1-i]
		if i == len(groups)-1 {
			g = strings.TrimPrefix(g, "0x") // hand-made trees
		} else if len(g) != 8 {
			return nil, fmt.Errorf("mask %s: group %q has not 8 digits", quote(text), g)
		}
		bits, err := hex(g, 32)
		if err != nil {
			return nil, fmt.Errorf("mask %s: %w", quote(text), err)
		}
		for b := range 32 {
			if bits>>b&1 == 1 {
				cpus = append(cpus, 32*i+b)
			}
		}
	}
	return cpus, nil
}

// hex reads hexadecimal digits only.
func hex(text string, bits int) (uint64, error) {
	if text == "" {
		return 0, errors.New("digits are missing")
	}
	for _, c := range []byte(text) {
		if !('0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F') {
			return 0, fmt.Errorf("%s is not hexadecimal", quote(text))
		}
	}
	n, err := strconv.ParseUint(text, 16, bits)
	if err != nil {
		return 0, fmt.Errorf("%s is too large", quote(text))
	}
	return n, nil
}

// parseInt reads a decimal number, as "%d" prints it.
func parseInt(text string) (int, error) {
	text = strings.TrimSpace(text)
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || strings.HasPrefix(text, "+") || n > math.MaxInt32 || n < math.MinInt32 {
		return 0, fmt.Errorf("%s is not a number", quote(text))
	}
	return int(n), nil
}

// parseCount reads a number of things, which is not negative.
func parseCount(text string) (int64, error) {
	text = strings.TrimSpace(text)
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil {
		return 0, fmt.Errorf("%s is not a count", quote(text))
	}
	return int64(n), nil
}

// parseSwitch reads "0" or "1".
func parseSwitch(text string) (bool, error) {
	switch strings.TrimSpace(text) {
	case "0":
		return false, nil
	case "1":
		return true, nil
	}
	return false, fmt.Errorf("%s is neither 0 nor 1", quote(text))
}

// hexID reads "0x8086" and the like with exactly that many digits, lower case.
func hexID(digits int) func(string) (string, error) {
	return func(text string) (string, error) {
		text = strings.TrimSpace(text)
		d, ok := strings.CutPrefix(strings.ToLower(text), "0x")
		if !ok || len(d) != digits {
			return "", fmt.Errorf("%s is not 0x and %d digits", quote(text), digits)
		}
		if _, err := hex(d, 64); err != nil {
			return "", err
		}
		return "0x" + d, nil
	}
}

// parsePoolName reads "hugepages-2048kB".
func parsePoolName(name string) (topology.PageSize, error) {
	digits, ok := strings.CutPrefix(name, "hugepages-")
	if ok {
		digits, ok = strings.CutSuffix(digits, "kB")
	}
	n, err := strconv.ParseUint(digits, 10, 50)
	if !ok || err != nil || n == 0 {
		return 0, fmt.Errorf("%s is not hugepages-SIZEkB", quote(name))
	}
	return topology.PageSize(n << 10), nil
}

// parseDistances reads the row of relative distances of one node.
func parseDistances(text string) ([]int, error) {
	fields := strings.Fields(text)
	if len(fields) == 0 || len(fields) > topology.MaxCPU {
		return nil, fmt.Errorf("%d distances", len(fields))
	}
	row := make([]int, len(fields))
	for i, f := range fields {
		d, err := parseCount(f)
		if err != nil || d == 0 || d > math.MaxInt32 {
			return nil, fmt.Errorf("%s is not a distance", quote(f))
		}
		row[i] = int(d)
	}
	return row, nil
}

// meminfo is what is read of a meminfo file, of one node or of the host; -1
// where a line is absent.
type meminfo struct {
	total, free int64  // bytes
	hugeTotal   int64  // HugePages_Total, pages of the default size
	hugeFree    int64  // HugePages_Free
	hugeSize    int64  // Hugepagesize, bytes
	malformed   string // the first optional line that could not be read; empty for none
}

// parseMeminfo reads node*/meminfo ("Node 0 MemTotal:  16772456 kB") for node
// >= 0, /proc/meminfo ("MemTotal:  16772456 kB") for -1. MemTotal must be there,
// once, and whole. Of the other lines one that is malformed is as unknown as an
// absent one, and told apart by name: it costs nothing but its own number.
func parseMeminfo(node int) func(string) (meminfo, error) {
	return func(text string) (meminfo, error) {
		m := meminfo{total: -1, free: -1, hugeTotal: -1, hugeFree: -1, hugeSize: -1}
		spoilt := map[*int64]bool{}
		for line := range strings.Lines(text) {
			line = strings.TrimSpace(line)
			if node >= 0 && line != "" {
				rest, ok := strings.CutPrefix(line, fmt.Sprintf("Node %d ", node))
				if !ok {
					if strings.Contains(line, "MemTotal") {
						return m, fmt.Errorf("%s is not of node %d", quote(line), node)
					}
					continue
				}
				line = rest
			}
			key, value, ok := strings.Cut(line, ":")
			if !ok {
				continue
			}
			var to *int64
			unit := " kB"
			switch key {
			case "MemTotal":
				to = &m.total
			case "MemFree":
				to = &m.free
			case "Hugepagesize":
				to = &m.hugeSize
			case "HugePages_Total":
				to, unit = &m.hugeTotal, ""
			case "HugePages_Free":
				to, unit = &m.hugeFree, ""
			default:
				continue
			}
			digits, ok := strings.CutSuffix(strings.TrimSpace(value), unit)
			n, err := strconv.ParseUint(digits, 10, 50)
			if !ok || err != nil || *to >= 0 {
				if to == &m.total {
					return m, fmt.Errorf("%s is not one number of its unit", quote(line))
				}
				spoilt[to] = true
				m.malformed = cmp.Or(m.malformed, quote(line))
				continue
			}
			*to = int64(n)
			if unit != "" {
				*to <<= 10
			}
		}
		if m.total < 0 {
			return m, errors.New("no MemTotal")
		}
		for to := range spoilt {
			*to = -1 // of two numbers neither is known to be right
		}
		return m, nil
	}
}

// cpuinfo is what is read of /proc/cpuinfo.
type cpuinfo struct {
	processors topology.CPUSet // the numbers behind "processor"
	amdCU      bool            // an AMD of family 15h or 16h: two cores share a compute unit
	vendor     string          // of the first processor; "" where the architecture tells none
	core       map[int][2]int  // processor → physical id, core id; only where both stand
}

// parseCPUInfo reads /proc/cpuinfo of any architecture. Unknown lines are
// skipped; a processor number that is none is an error.
func parseCPUInfo(text string) (cpuinfo, error) {
	info := cpuinfo{core: map[int][2]int{}}
	family := ""
	var numbers []int
	current, ids := -1, [2]int{-1, -1}
	flush := func() {
		if current >= 0 && ids[0] >= 0 && ids[1] >= 0 {
			info.core[current] = ids
		}
		ids = [2]int{-1, -1}
	}
	for line := range strings.Lines(text) {
		key, value, ok := strings.Cut(line, ":")
		if !ok {
			continue
		}
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		switch key {
		case "processor":
			n, err := parseCount(value)
			if err != nil || n > topology.MaxCPU {
				return info, fmt.Errorf("processor %s is not a CPU number", quote(value))
			}
			flush()
			current = int(n)
			numbers = append(numbers, current)
		case "vendor_id":
			if info.vendor == "" {
				info.vendor = value
			}
		case "cpu family":
			if family == "" {
				family = value
			}
		case "physical id", "core id":
			if n, err := parseInt(value); err == nil && n >= 0 {
				if key == "physical id" {
					ids[0] = n
				} else {
					ids[1] = n
				}
			}
		default:
			// s390: "processor 0: version = FF, identification = …".
			if digits, ok := strings.CutPrefix(key, "processor "); ok {
				if n, err := parseCount(digits); err == nil && n <= topology.MaxCPU {
					numbers = append(numbers, int(n))
				}
			}
		}
	}
	flush()
	info.amdCU = info.vendor == "AuthenticAMD" && (family == "21" || family == "22")
	info.processors = topology.NewCPUSet(numbers...)
	return info, nil
}

// parseStatCPUs reads the CPU numbers of /proc/stat, which shows online ones.
func parseStatCPUs(text string) (topology.CPUSet, error) {
	var numbers []int
	for line := range strings.Lines(text) {
		digits, ok := strings.CutPrefix(line, "cpu")
		if !ok {
			continue
		}
		digits, _, _ = strings.Cut(digits, " ")
		if n, err := strconv.ParseUint(digits, 10, 31); err == nil && n <= topology.MaxCPU {
			numbers = append(numbers, int(n))
		}
	}
	return topology.NewCPUSet(numbers...), nil
}

// parseGPUNode reads the number behind "Node:" of NVIDIA's numa_status, false
// where there is none.
func parseGPUNode(text string) (int, bool) {
	_, rest, ok := strings.Cut(text, "Node:")
	if !ok {
		return 0, false
	}
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return 0, false
	}
	n, err := parseInt(fields[0])
	return n, err == nil && n >= 0
}

// vpdSerial finds keyword SN in a device's vital product data (PCI Local Bus
// Specification 3.0, appendix I); "" when there is none or the data is broken.
func vpdSerial(data []byte) string {
	const largeVPDR = 0x90
	for len(data) >= 3 {
		tag := data[0]
		if tag&0x80 == 0 { // small resource: length in the low three bits; 0x78 ends the list
			if tag == 0x78 {
				return ""
			}
			skip := 1 + int(tag&7)
			if skip > len(data) {
				return ""
			}
			data = data[skip:]
			continue
		}
		length := int(data[1]) | int(data[2])<<8
		if 3+length > len(data) {
			return ""
		}
		body := data[3 : 3+length]
		data = data[3+length:]
		for tag == largeVPDR && len(body) >= 3 {
			n := int(body[2])
			if 3+n > len(body) {
				return ""
			}
			if string(body[:2]) == "SN" {
				return printable(string(body[3 : 3+n]))
			}
			body = body[3+n:]
		}
	}
	return ""
}

// printable is the text without blanks at its ends, "" if it is not plain ASCII.
func printable(s string) string {
	s = strings.Trim(s, " \x00")
	for _, c := range []byte(s) {
		if c < 0x20 || c > 0x7e {
			return ""
		}
	}
	return s
}

// quote shows text in an error, shortened where a garbled file is long.
func quote(text string) string {
	const most = 40
	if len(text) > most {
		return strconv.Quote(text[:most]) + "…"
	}
	return strconv.Quote(text)
}
