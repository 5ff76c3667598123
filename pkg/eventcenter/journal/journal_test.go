package journal_test

import (
	"encoding/json"
	"testing"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
)

// Consumers get JSON that every parser accepts, also of events that an older center stored.
func TestText(t *testing.T) {
	for stored, asBytes := range map[string]bool{`{"id":"1","data":"a"}`: false, `{"id":"1","data":"\ud83d\ude00"}`: false,
		`{"id":"1","data":"\ud800"}`: true, "{\"id\":\"1\",\"data\":\"\xff\"}": true, `{"id":"1"`: true} {
		r := journal.Record{Event: journal.Event{Source: "urn:a", ID: "1", Type: "x", JSON: []byte(stored)}}
		var e struct {
			ID    string
			Bytes []byte `json:"data_base64"`
		}
		must(t, json.Unmarshal(r.Text(), &e))
		if e.ID != "1" || asBytes != (string(e.Bytes) == stored) || !asBytes && string(r.Text()) != stored {
			t.Errorf("%q: %s", stored, r.Text())
		}
	}
}
