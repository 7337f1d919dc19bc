package fitcase

import (
	"fmt"
	"strings"

	"berth/topology"
)

// Words says a change of the case as one would to an operator, operation by
// operation.
func (c *Case) Words(change Change) []string {
	out := make([]string, len(change))
	for i, op := range change {
		out[i] = c.words(op)
	}
	return out
}

func (c *Case) words(op Op) string {
	was, _ := c.at(op.Path)
	path := tokens(op.Path)
	last := path[len(path)-1]
	under := func(prefix ...string) bool {
		return len(path) > len(prefix) && strings.HasPrefix(op.Path, pointer(prefix...)+"/")
	}
	switch {
	case under("host", "cells") && len(path) > 3:
		cell, _ := c.at(pointer(path[:3]...))
		m, _ := cell.(map[string]any)
		return fmt.Sprintf("cell %v: %s", value(m["id"]), c.cellWords(op, path[3:], was))
	case under("host", "cells"):
		return "add a cell: " + value(op.Value)
	case under("host", "pci_pools") && last == "count":
		return fmt.Sprintf("have %v functions of %s, now %v", value(op.Value), c.poolWords(path[:3]), value(was))
	case under("host", "pci_pools"):
		return "add PCI functions: " + value(op.Value)
	case under("request", "pci_requests"):
		id, _ := c.at(pointer(append(append([]string{}, path[:3]...), "id")...))
		switch {
		case op.Op == "remove":
			return fmt.Sprintf("drop the PCI request %v", value(id))
		case last == "count":
			return fmt.Sprintf("ask for %v functions in PCI request %v, now %v", value(op.Value), value(id), value(was))
		}
		return fmt.Sprintf("PCI request %v: %s %s, now %s", value(id), last, value(op.Value), value(was))
	case op.Op == "remove":
		return fmt.Sprintf("drop %s, now %s", last, value(was))
	}
	return fmt.Sprintf("set %s to %s, now %s", last, value(op.Value), value(was))
}

// cellWords says what is done to a host cell; field is the path from there.
func (c *Case) cellWords(op Op, field []string, was any) string {
	before, ok1 := whole(was)
	number, err := plain(op.Value)
	after, ok2 := whole(number)
	counted := ok1 && ok2 && err == nil
	switch {
	case field[0] == "pinned_cpus":
		a, err1 := topology.ParseCPUSet(textOf(was))
		b, err2 := topology.ParseCPUSet(textOf(op.Value))
		if err1 == nil && err2 == nil {
			return fmt.Sprintf("free the pinned CPUs %s", a.Difference(b))
		}
	case field[0] == "dedicated_cpus" || field[0] == "shared_cpus":
		return fmt.Sprintf("%s %s, now %s", strings.ReplaceAll(field[0], "_", " "), value(op.Value), value(was))
	case field[0] == "memory_used_mb" && counted:
		return fmt.Sprintf("free %d MiB of memory in use", before-after)
	case field[0] == "shared_vcpus_used" && counted:
		return fmt.Sprintf("free %d shared vCPUs in use", before-after)
	case field[0] == "memory_mb" && counted:
		return fmt.Sprintf("have %d MiB of memory, now %d", after, before)
	case field[0] == "mempages" && len(field) == 3 && counted:
		size := "?"
		path := tokens(op.Path)
		if kb, ok := c.at(pointer(append(append([]string{}, path[:len(path)-1]...), "size_kb")...)); ok {
			if n, ok := whole(kb); ok {
				size = (topology.PageSize(n) << 10).String()
			}
		}
		if field[2] == "used" {
			return fmt.Sprintf("free %d pages of %s in use", before-after, size)
		}
		return fmt.Sprintf("have %d pages of %s, now %d", after, size, before)
	}
	return fmt.Sprintf("set %s to %s, now %s", strings.Join(field, "."), value(op.Value), value(was))
}

func (c *Case) poolWords(path []string) string {
	m, _ := c.at(pointer(path...))
	p, _ := m.(map[string]any)
	where := "of unknown cell"
	if p["numa_node"] != nil {
		where = "on cell " + value(p["numa_node"])
	}
	return fmt.Sprintf("%s:%s %s %s", value(p["vendor_id"]), value(p["product_id"]), value(p["dev_type"]), where)
}

func textOf(v any) string {
	s, _ := v.(string)
	return s
}

// value writes a value for a sentence.
func value(v any) string {
	switch v := v.(type) {
	case nil:
		return "none"
	case string:
		return fmt.Sprintf("%q", v)
	case map[string]any, []any, []string:
		text, err := marshal(v)
		if err != nil {
			return fmt.Sprint(v)
		}
		return text
	}
	return fmt.Sprint(v)
}
