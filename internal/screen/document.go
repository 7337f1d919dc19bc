package screen

import (
	"bytes"
	"encoding/json"
	"io"

	"go.yaml.in/yaml/v3"
)

// Document writes v as JSON, or as YAML with the same fields in the same order.
func Document(w io.Writer, v any, asYAML bool, indent string) error {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", indent)
	if err := enc.Encode(v); err != nil {
		return err
	}
	if !asYAML {
		_, err := w.Write(text.Bytes())
		return err
	}
	var doc yaml.Node // JSON is YAML; the node keeps the order of fields
	if err := yaml.Unmarshal(text.Bytes(), &doc); err != nil {
		return err
	}
	unstyle(&doc)
	out := yaml.NewEncoder(w)
	out.SetIndent(2)
	if err := out.Encode(&doc); err != nil {
		return err
	}
	return out.Close()
}

// unstyle takes the marks of JSON off a document: braces, and quotes where YAML needs none.
func unstyle(n *yaml.Node) {
	n.Style = 0
	for _, c := range n.Content {
		unstyle(c)
	}
}
