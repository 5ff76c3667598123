package object

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Histories and journals on disk keep identities as objects of texts. Each is read as the identity that its lister makes,
// and written in the same form.
func TestIdentityOnDisk(t *testing.T) {
	for text, want := range map[string]Identity{
		`{}`: {},
		`{"created":"1700000000000000000","id":"ab"}`: {Runtime: RuntimeID{ID: "ab", Created: 1_700_000_000_000_000_000}},
		`{"pid":"77","startTime":"5"}`:                {Process: ProcessID{PID: 77, StartTime: 5}},
		`{"device":"0:9","id":"31","point":"/p","root":"/","source":"tmpfs","type":"tmpfs"}`: {
			Mount: MountID{ID: 31, Device: "0:9", Root: "/", Point: "/p", Source: "tmpfs", Type: "tmpfs"}},
		`{"device":"8:1","id":"4","root":"/r"}`: {Mount: MountID{ID: 4, Device: "8:1", Root: "/r"}},
		`{"device":"0:4","inode":"12"}`:         {File: FileID{Device: "0:4", Inode: 12}},
		`{"inode":"4026531840"}`:                {File: FileID{Inode: 4026531840}},
		`{"device":"8:1","inode":"12","modified":"3","size":"9"}`: {
			File: FileID{Device: "8:1", Inode: 12, Size: 9, Modified: 3}},
		`{"index":"3","mac":"m","namespace":"7","peerIndex":"2","peerNamespace":"0"}`: {
			Link: LinkID{Index: 3, PeerIndex: 2, MAC: "m", Namespace: 7}},
		`{"index":"3","mac":"m","peerIndex":"4","peerNamespace":"-1"}`: {
			Link: LinkID{Index: 3, PeerIndex: 4, PeerNamespace: -1, MAC: "m"}},
		`{"created":"3","key":"k","snapshotter":"overlayfs"}`: {Runtime: RuntimeID{Created: 3},
			Names: map[string]string{"key": "k", "snapshotter": "overlayfs"}},
		`{"device":"8:1","inode":"12","name":"n"}`: {File: FileID{Device: "8:1", Inode: 12},
			Names: map[string]string{"name": "n"}},
		`{"changed":"3","inode":"12"}`: {File: FileID{Inode: 12}, Names: map[string]string{"changed": "3"}},
		`{"id":"ab","pid":"7"}`:        {Names: map[string]string{"id": "ab", "pid": "7"}},
		`{"creator":"7","id":"0","key":"0","size":"4096"}`: {
			Names: map[string]string{"id": "0", "key": "0", "creator": "7", "size": "4096"}},
		`{"device":"7:0","sequence":"","volume":"v"}`: {
			Names: map[string]string{"device": "7:0", "sequence": "", "volume": "v"}},
		`{"optOut":"","selectors":"a=b"}`: {Names: map[string]string{"optOut": "", "selectors": "a=b"}},
	} {
		var got Identity
		if err := json.Unmarshal([]byte(text), &got); err != nil || !got.Equal(want) {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
		written, err := json.Marshal(want)
		if diff := cmp.Diff(text, string(written)); diff != "" || err != nil {
			t.Error(diff, err)
		}
	}
	var none Identity
	if err := json.Unmarshal([]byte(`null`), &none); err != nil || !none.Equal(Identity{}) {
		t.Errorf("%+v, %v", none, err)
	}
	if err := json.Unmarshal([]byte(`{"pid":"x","startTime":"5"}`), &none); err == nil {
		t.Error("a malformed number is no error")
	}
}
