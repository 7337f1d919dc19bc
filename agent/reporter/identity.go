package reporter

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/uuid"

	"berth/internal/fault"
)

// IdentityFile is where a host keeps its provider's uuid, in the state directory.
const IdentityFile = "provider_uuid"

// Identity reads the provider's uuid from the state directory, and makes one on
// the first start. It is durable before it is returned: a uuid that Placement
// knows and the host forgot would make the host a stranger to its own provider.
// A file that cannot be read is an error, never a reason to make a new one.
func Identity(stateDir string) (id string, err error) {
	path := filepath.Join(stateDir, IdentityFile)
	data, err := os.ReadFile(path)
	if err == nil {
		parsed, err := uuid.Parse(strings.TrimSpace(string(data)))
		if err != nil {
			return "", fault.New(fault.Invalid, "read the provider's uuid: %s: %w", path, err)
		}
		return parsed.String(), nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("read the provider's uuid: %w", err)
	}
	made, err := uuid.NewRandom()
	if err != nil {
		return "", fmt.Errorf("make a uuid for the provider: %w", err)
	}
	if err := writeDurably(path, made.String()+"\n"); err != nil {
		return "", fmt.Errorf("keep the provider's uuid: %w", err)
	}
	return made.String(), nil
}

// KeepIdentity writes the provider's uuid that a host has lost and found again.
func KeepIdentity(stateDir, id string) error {
	if err := writeDurably(filepath.Join(stateDir, IdentityFile), id+"\n"); err != nil {
		return fmt.Errorf("keep the provider's uuid: %w", err)
	}
	return nil
}

func writeDurably(path, text string) error {
	temporary := path + ".new"
	f, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(err, os.Remove(temporary))
	}
	if err := os.Rename(temporary, path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
