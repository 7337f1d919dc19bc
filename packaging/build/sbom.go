package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"time"
)

// The few elements of CycloneDX 1.6 that say what a Go binary is made of
// (https://cyclonedx.org/docs/1.6/json/).
type (
	cdxDocument struct {
		Format       string          `json:"bomFormat"`
		Spec         string          `json:"specVersion"`
		Serial       string          `json:"serialNumber"`
		Version      int             `json:"version"`
		Metadata     cdxMetadata     `json:"metadata"`
		Components   []cdxComponent  `json:"components"`
		Dependencies []cdxDependency `json:"dependencies"`
	}
	cdxMetadata struct {
		Timestamp string       `json:"timestamp"`
		Component cdxComponent `json:"component"`
	}
	cdxComponent struct {
		Type       string        `json:"type"`
		Ref        string        `json:"bom-ref"`
		Name       string        `json:"name"`
		Version    string        `json:"version"`
		Hashes     []cdxHash     `json:"hashes,omitempty"`
		Licences   []cdxLicence  `json:"licenses"`
		PURL       string        `json:"purl"`
		Properties []cdxProperty `json:"properties,omitempty"`
	}
	cdxHash     struct{ Alg, Content string }
	cdxLicence  struct{ ID string }
	cdxProperty struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	}
	cdxDependency struct {
		Ref string   `json:"ref"`
		On  []string `json:"dependsOn,omitempty"`
	}
)

// MarshalJSON writes the names as the schema has them.
func (h cdxHash) MarshalJSON() ([]byte, error) {
	return json.Marshal(map[string]string{"alg": h.Alg, "content": h.Content})
}

// MarshalJSON writes a licence by its SPDX identifier.
func (l cdxLicence) MarshalJSON() ([]byte, error) {
	return json.Marshal(map[string]map[string]string{"license": {"id": l.ID}})
}

// purl names a part so that databases of vulnerabilities know it. Go's own library is
// "stdlib" there.
func (p part) purl() string {
	if p.Path == standard {
		return "pkg:golang/stdlib@" + p.Version
	}
	return "pkg:golang/" + p.Path + "@" + p.Version
}

// sbom says what the binary is made of. It is of this binary alone: its serial number
// follows from the bytes.
func (r *release) sbom(parts []part) ([]byte, error) {
	binary, err := os.ReadFile(r.binary)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(binary)
	// A uuid of a version for numbers of one's own making (RFC 9562, 5.8).
	id := sum
	id[6], id[8] = id[6]&0x0f|0x80, id[8]&0x3f|0x80
	root := "pkg:golang/berth@" + r.version
	doc := cdxDocument{
		Format: "CycloneDX", Spec: "1.6", Version: 1,
		Serial: fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:16]),
		Metadata: cdxMetadata{Timestamp: r.time.Format(time.RFC3339), Component: cdxComponent{
			Type: "application", Ref: root, Name: "berth", Version: r.version, PURL: root,
			Hashes: []cdxHash{{"SHA-256", hex.EncodeToString(sum[:])}}, Licences: []cdxLicence{{"Apache-2.0"}},
		}},
	}
	refs := map[string]string{}
	for _, p := range parts {
		refs[p.Path] = p.purl()
	}
	all := cdxDependency{Ref: root}
	var others []cdxDependency
	for _, p := range parts {
		c := cdxComponent{Type: "library", Ref: p.purl(), Name: p.Path, Version: p.Version, PURL: p.purl(), Licences: []cdxLicence{{p.Licence}}}
		if p.Sum != "" {
			c.Properties = []cdxProperty{{"go.sum", p.Sum}}
		}
		doc.Components = append(doc.Components, c)
		all.On = append(all.On, c.Ref)
		d := cdxDependency{Ref: c.Ref}
		for _, n := range p.Needs {
			d.On = append(d.On, refs[n])
		}
		others = append(others, d)
	}
	doc.Dependencies = append([]cdxDependency{all}, others...)
	out, err := json.MarshalIndent(doc, "", "  ")
	return append(out, '\n'), err
}
