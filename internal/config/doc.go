// Package config reads Berth's configuration: one file, its drop-ins, and the
// values that stand where neither says anything.
//
// It reads berth.toml, then berth.toml.d/*.toml beside it in name order, each
// laid over what came before, key by key. It is strict: a key that nothing
// reads is an error that names file, line and key, since a misspelt key that is
// passed over is a setting that the operator believes in. Validate lists every
// fault at once. The package writes nothing.
//
// Only keys that something reads are here. packaging/berth.toml documents each
// one with its default; a test holds the two together.
package config
