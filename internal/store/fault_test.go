package store

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// TestStoreUnreadablePage: a page of the mapped file that the disk can no longer read does not end the agent, whether a
// write or a read hits it. Here the file is truncated below the mapping, which raises the same SIGBUS as a read error.
func TestStoreUnreadablePage(t *testing.T) {
	for name, use := range map[string]func(b Bucket) error{
		"write":      func(b Bucket) error { return b.Put("key000", []byte("new")) },
		"delete":     func(b Bucket) error { return b.Delete("key000") },
		"read":       func(b Bucket) error { return b.ForEach(func(string, []byte) error { return nil }) },
		"new bucket": func(b Bucket) error { return b.store.Bucket("other").Put("key", []byte("new")) },
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "state.db")
			s := open(t, path)
			b := s.Bucket("outbox")
			values := map[string][]byte{}
			for i := range 500 {
				values[fmt.Sprintf("key%03d", i)] = make([]byte, 300)
			}
			if err := b.PutAll(values); err != nil {
				t.Fatal(err)
			}
			if err := os.Truncate(path, 2*int64(os.Getpagesize())); err != nil {
				t.Fatal(err)
			}
			if err := use(b); err == nil {
				t.Error("no error")
			}
			if err := b.Put("later", []byte("kept")); err != nil && s.db != nil {
				t.Error(err)
			}
			if value, ok := b.Get("later"); !ok || string(value) != "kept" {
				t.Errorf("in memory there is %q", value)
			}
			if s.Trouble() == nil {
				t.Error("the trouble is not reported")
			}
		})
	}
}
