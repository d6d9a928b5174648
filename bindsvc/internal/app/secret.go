package app

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/homenode/homenode/bindsvc/internal/config"
)

// keptSecret returns the secret kept in a file of dir, made at the first start.
// Of several processes that start at once, all get the same.
func keptSecret(dir, name string) (config.Secret, error) {
	path := filepath.Join(dir, name)
	for {
		content, err := os.ReadFile(path)
		if err == nil {
			secret := strings.TrimSpace(string(content))
			if len(secret) < config.MinSecretLength {
				return "", usageError{fmt.Errorf("%s: want at least %d characters; delete the file to have a new one made", path, config.MinSecretLength)}
			}
			return config.Secret(secret), nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", usageError{err}
		}
		if err := create(path, rand.Text()); err != nil && !errors.Is(err, fs.ErrExist) {
			return "", usageError{err}
		}
	}
}

// create writes a file that appears whole or not at all, and only if there is none.
func create(path, content string) error {
	temporary, err := os.CreateTemp(filepath.Dir(path), ".new-*") // mode 0600
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(temporary.Name()) }()
	if _, err := temporary.WriteString(content + "\n"); err != nil {
		_ = temporary.Close()
		return err
	}
	if err := errors.Join(temporary.Sync(), temporary.Close()); err != nil {
		return err
	}
	return os.Link(temporary.Name(), path)
}
