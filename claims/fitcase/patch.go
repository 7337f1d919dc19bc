package fitcase

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Op is one operation of a JSON Patch (RFC 6902): add, replace or remove.
type Op struct {
	Op    string `json:"op"`
	Path  string `json:"path"` // JSON Pointer (RFC 6901)
	Value any    `json:"value,omitempty"`
}

// pointer writes a JSON Pointer; "" is the whole document.
func pointer(tokens ...string) string {
	var b strings.Builder
	for _, t := range tokens {
		b.WriteByte('/')
		b.WriteString(strings.ReplaceAll(strings.ReplaceAll(t, "~", "~0"), "/", "~1"))
	}
	return b.String()
}

func tokens(path string) []string {
	if path == "" {
		return nil
	}
	list := strings.Split(path[1:], "/")
	for i, t := range list {
		list[i] = strings.ReplaceAll(strings.ReplaceAll(t, "~1", "/"), "~0", "~")
	}
	return list
}

// apply gives the document after the operations. The one it is given stays as it
// is; what no operation touches is shared by both.
func apply(doc map[string]any, ops []Op) (map[string]any, error) {
	var now any = doc
	for _, op := range ops {
		value, err := plain(op.Value)
		if err != nil {
			return nil, err
		}
		if now, err = applyOne(now, tokens(op.Path), op.Op, value); err != nil {
			return nil, fmt.Errorf("%s %s: %w", op.Op, op.Path, err)
		}
	}
	after, ok := now.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("the operations leave no object")
	}
	return after, nil
}

func applyOne(node any, path []string, op string, value any) (any, error) {
	if len(path) == 0 {
		return nil, fmt.Errorf("the whole document is not to be changed")
	}
	key, last := path[0], len(path) == 1
	switch node := node.(type) {
	case map[string]any:
		child, there := node[key]
		if !there && (!last || op != "add") {
			return nil, fmt.Errorf("nothing stands at %q", key)
		}
		after := maps.Clone(node)
		switch {
		case !last:
			changed, err := applyOne(child, path[1:], op, value)
			if err != nil {
				return nil, err
			}
			after[key] = changed
		case op == "remove":
			delete(after, key)
		default:
			after[key] = value
		}
		return after, nil
	case []any:
		i, err := strconv.Atoi(key)
		if key == "-" && last && op == "add" {
			i, err = len(node), nil
		}
		if err != nil || i < 0 || i > len(node) || i == len(node) && (!last || op != "add") {
			return nil, fmt.Errorf("nothing stands at %q", key)
		}
		if last && op == "add" {
			return slices.Insert(slices.Clone(node), i, value), nil
		}
		after := slices.Clone(node)
		switch {
		case !last:
			changed, err := applyOne(after[i], path[1:], op, value)
			if err != nil {
				return nil, err
			}
			after[i] = changed
		case op == "remove":
			after = slices.Delete(after, i, i+1)
		default:
			after[i] = value
		}
		return after, nil
	}
	return nil, fmt.Errorf("nothing stands at %q", key)
}

// plain gives a value as the JSON decoder would have given it.
func plain(v any) (any, error) {
	switch v := v.(type) {
	case nil, string, bool:
		return v, nil
	case int:
		return json.Number(strconv.Itoa(v)), nil
	case int64:
		return json.Number(strconv.FormatInt(v, 10)), nil
	}
	text, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	dec := json.NewDecoder(strings.NewReader(string(text)))
	dec.UseNumber()
	var out any
	return out, dec.Decode(&out)
}

func marshal(v any) (string, error) {
	text, err := json.Marshal(v)
	return string(text), err
}
