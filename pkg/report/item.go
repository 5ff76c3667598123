package report

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"strconv"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Item is one thing for an edge sink to report.
type Item struct {
	ID       string           `json:"id"`  // stable: a repeated report has the same ID
	Seq      uint64           `json:"seq"` // order of arrival; the outbox sets it if it is 0
	Key      string           `json:"key"` // whose budget it uses, or the stream it belongs to
	Severity finding.Severity `json:"severity"`
	Count    int              `json:"count"`          // how many things it stands for
	First    time.Time        `json:"first"`          // the first of them
	Last     time.Time        `json:"last"`           // the last of them
	Held     bool             `json:"held,omitempty"` // not to be sent: still aggregating, or quarantined
	Lost     string           `json:"lost,omitempty"` // why it was given up; the body is removed
	Body     json.RawMessage  `json:"body"`           // the sink's own
}

func byAge(a, b *Item) int { return cmp.Compare(a.Seq, b.Seq) }

// inStreams orders items by stream, and by age in each.
func inStreams(a, b *Item) int { return cmp.Or(cmp.Compare(a.Key, b.Key), byAge(a, b)) }

func expendable(a, b *Item) int {
	return cmp.Or(b.Severity.Compare(a.Severity), cmp.Compare(a.First.Unix(), b.First.Unix()), byAge(a, b))
}

func urgent(a, b *Item) int {
	return cmp.Or(a.Severity.Compare(b.Severity), byAge(a, b))
}

// storeKey orders items in the store by age.
func (i *Item) storeKey() string { return fmt.Sprintf("%016x-%s", i.Seq, i.ID) }

// stored returns the stored form of an item: a checksum and its JSON, with the body unchanged.
func (i *Item) stored() []byte {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(i) // an item is plain data, and its Body was checked when it was made
	return fmt.Appendf(nil, "%s %s", checksum(text.Bytes()), text.Bytes())
}

// readItem reads the format of stored. If only the key is readable, the item is lost.
func readItem(key string, value []byte) (item Item, err error) {
	sum, text, ok := bytes.Cut(value, []byte(" "))
	switch {
	case bytes.HasPrefix(value, []byte("{")): // written by an agent before there were checksums
		text = value
	case !ok || string(sum) != checksum(text):
		err = errors.New("checksum does not match")
	}
	if err == nil {
		err = json.Unmarshal(text, &item)
	}
	if err == nil && (item.ID == "" || item.storeKey() != key) {
		err = fmt.Errorf("it is of %q", item.ID)
	}
	if err == nil {
		return item, nil
	}
	seq, id, _ := strings.Cut(key, "-")
	lost := Item{ID: id, Severity: finding.Warning, Lost: "lost", First: time.Now()}
	lost.Key, _, _ = strings.Cut(id, "-")
	if lost.Seq, _ = strconv.ParseUint(seq, 16, 64); lost.Seq == 0 || lost.Key == id || lost.storeKey() != key {
		lost = Item{} // not an item of a stream
	}
	return lost, err
}

func checksum(data []byte) string {
	return fmt.Sprintf("%08x", crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli)))
}
