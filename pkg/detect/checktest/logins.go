package checktest

import (
	"encoding/binary"
	"encoding/json"
	"testing"
	"time"

	"golang.org/x/tools/txtar"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect/system/wtmp"
)

// WtmpRecord makes one record of /var/log/wtmp.
func WtmpRecord(l wtmp.WtmpLayout, kind uint16, user string, at time.Time) []byte {
	record := make([]byte, l.Size)
	binary.LittleEndian.PutUint16(record, kind)
	copy(record[8:], "~")
	copy(record[40:], "~~")
	copy(record[44:], user)
	if l.Time64 {
		binary.LittleEndian.PutUint64(record[l.Time:], uint64(at.Unix()))
	} else {
		binary.LittleEndian.PutUint32(record[l.Time:], uint32(at.Unix()))
	}
	return record
}

// fixtureLogins writes /var/log/wtmp from a list such as [{"boot": "2026-11-20T10:00:00Z"}, {"shutdown": …},
// {"login": …}].
func fixtureLogins(t *testing.T, h *host.Host, file txtar.File) {
	t.Helper()
	var list []map[string]time.Time
	if err := json.Unmarshal(file.Data, &list); err != nil {
		t.Fatal(err)
	}
	var data []byte
	for _, entry := range list {
		for what, at := range entry {
			kind, user := map[string]uint16{"boot": wtmp.WtmpBoot, "shutdown": wtmp.WtmpRunLevel,
				"runlevel": wtmp.WtmpRunLevel, "login": 7}[what], what
			if what == "boot" {
				user = "reboot"
			}
			data = append(data, WtmpRecord(wtmp.WtmpLayouts()[0], kind, user, at)...)
		}
	}
	WriteFile(t, h.Files.Root, txtar.File{Name: "var/log/wtmp", Data: data})
}
