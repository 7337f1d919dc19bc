// Package screen writes what commands print: tables and paragraphs that fit a terminal, and the same
// data as JSON or YAML.
package screen
