package hosttest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
)

// Extract writes the files of a txtar archive below root. Because txtar has only text files, three kinds of names are
// special:
//
//	-- proc/900/cwd -> / --       a symbolic link
//	-- var/lib/kubelet/pods/ --   a folder
//	-- proc/900/cmdline --        one argument a line; written with NUL bytes, as the kernel does
func Extract(t testing.TB, archive, root string) {
	t.Helper()
	parsed, err := txtar.ParseFile(archive)
	if err != nil {
		t.Fatalf("fixture: %v", err)
	}
	for _, file := range parsed.Files {
		if err := extract(file, root); err != nil {
			t.Fatalf("fixture %s: %v", archive, err)
		}
	}
}

func extract(file txtar.File, root string) error {
	name, target, link := strings.Cut(file.Name, " -> ")
	path := filepath.Join(root, filepath.Clean("/"+name))
	if strings.HasSuffix(name, "/") {
		return os.MkdirAll(path, 0o755)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if link {
		return os.Symlink(target, path)
	}
	data := file.Data
	if filepath.Base(path) == "cmdline" && strings.HasPrefix(filepath.ToSlash(name), "proc/") {
		data = []byte(strings.ReplaceAll(string(data), "\n", "\x00"))
	}
	return os.WriteFile(path, data, 0o644)
}
