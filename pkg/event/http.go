package event

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// The media types of the HTTP protocol binding of CloudEvents 1.0: one event, and many of them as a JSON array.
const (
	MediaType      = "application/cloudevents+json"
	BatchMediaType = "application/cloudevents-batch+json"
)

// Binary returns an encoded event in the binary mode of the HTTP protocol binding: attributes as headers, and the data
// as the body.
func Binary(encoded []byte) (http.Header, []byte, error) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(encoded, &members); err != nil {
		return nil, nil, fmt.Errorf("event: %w", err)
	}
	headers := http.Header{}
	for name, value := range members {
		if name == "data" {
			continue
		}
		var text string
		if err := json.Unmarshal(value, &text); err != nil {
			return nil, nil, fmt.Errorf("event: attribute %s: %w", name, err)
		}
		if name == "datacontenttype" {
			headers.Set("Content-Type", text)
		} else {
			headers.Set("Ce-"+name, headerValue(text))
		}
	}
	return headers, members["data"], nil
}

// headerValue encodes what is not printable ASCII, space, quotation mark and percent sign (binding, section 3.1.3.2).
func headerValue(text string) string {
	var b strings.Builder
	for i := range len(text) {
		if c := text[i]; c > ' ' && c < 0x7f && c != '"' && c != '%' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}
