package store

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	bolterrors "go.etcd.io/bbolt/errors"
)

// TestStoreTornLeaf: pages that bbolt does not read on open are torn, as after a power failure. The store notices that
// on open, not at the first read or write weeks later.
func TestStoreTornLeaf(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	s := open(t, path)
	values := map[string][]byte{}
	for i := range 200 {
		values["key"+strings.Repeat("x", i)] = make([]byte, 300)
	}
	if err := s.Bucket("outbox").PutAll(values); err != nil {
		t.Fatal(err)
	}
	s.Close()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	torn := 0
	for page := 2 * os.Getpagesize(); page < len(data); page += os.Getpagesize() {
		// The header of a page: id (8 bytes), flags (2), count (2), overflow (4).
		if flags := binary.NativeEndian.Uint16(data[page+8:]); flags == 0x02 &&
			binary.NativeEndian.Uint64(data[page:]) > 0 {
			for i := page + 16; i < page+os.Getpagesize(); i++ {
				data[i] = 0xff
			}
			torn++
		}
	}
	write(t, path, data)
	s = open(t, path)
	if trouble := s.Trouble(); torn == 0 || trouble == nil {
		t.Fatalf("%d pages are torn, trouble %v", torn, trouble)
	}
	if _, err := os.Stat(path + ".corrupt"); err != nil {
		t.Errorf("the corrupt file was not kept: %v", err)
	}
	if err := s.Bucket("outbox").Put("a", []byte("new")); err != nil {
		t.Errorf("the new file cannot be written: %v", err)
	}
}

// TestStoreNewerWriteCounts: a value that could not be written is kept in memory only until a later value of its key is
// written.
func TestStoreNewerWriteCounts(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "state.db"))
	b := s.Bucket("outbox")
	tooLarge := strings.Repeat("k", 40_000) // bbolt refuses it, and everything written with it
	err := b.PutAll(map[string][]byte{"put": []byte("old"), "deleted": []byte("old"), tooLarge: nil, tooLarge +
		"1": []byte("x")})
	if !errors.Is(err, bolterrors.ErrKeyTooLarge) {
		t.Fatalf("error %v", err)
	}
	if value, ok := b.Get("put"); !ok || string(value) != "old" {
		t.Errorf("what could not be written is lost: %q, %v", value, ok)
	}
	if err := b.Put("put", []byte("new")); err != nil {
		t.Fatal(err)
	}
	if err := b.Delete("deleted"); err != nil {
		t.Fatal(err)
	}
	if value, ok := b.Get("put"); !ok || string(value) != "new" {
		t.Errorf("the later write is not seen: %q, %v", value, ok)
	}
	if value, ok := b.Get("deleted"); ok {
		t.Errorf("what was deleted is back: %q", value)
	}
}
