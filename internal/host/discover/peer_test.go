package discover

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/nodeagent/nodeagent/internal/host"
)

// If the sockets of one process are unreadable, it is unknown whether any process holds the socket.
func TestSocketOwnerThatCannotBeRead(t *testing.T) {
	dir, err := os.MkdirTemp("", "") // t.TempDir is too long for the name of a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	root := t.TempDir()
	put := func(name, text string) {
		t.Helper()
		name = filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("proc/net/unix", fmt.Sprintf("Num RefCount Protocol Flags Type St Inode Path\nf: 00000002 00000000 00010000 "+
		"0001 01 7 %s\n", socket))
	put("proc/5/stat", "5 (x) S 1")
	if _, err := SocketOwner(t.Context(), host.Files{Root: root}, socket); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v, want that nobody holds it", err)
	}
	put("proc/5/fd", "no folder")
	if _, err := SocketOwner(t.Context(), host.Files{Root: root}, socket); err == nil ||
		errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v, want that one cannot be read", err)
	}
}
