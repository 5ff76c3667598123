package event

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// The media types of the HTTP protocol binding of CloudEvents 1.0: one event, and many of them as a JSON array.
const (
	MediaType      = "application/cloudevents+json"
	BatchMediaType = "application/cloudevents-batch+json"
)

// inBinary returns an encoded event in the binary mode of the HTTP protocol binding: attributes as headers, and the data
// as the body, without its JSON format.
func inBinary(encoded []byte) (http.Header, []byte, error) {
	e, err := ReadEnvelope(encoded)
	if err != nil {
		return nil, nil, fmt.Errorf("event: %w", err)
	}
	header := http.Header{}
	for name, value := range e.attributes {
		if name == contentType {
			header.Set("Content-Type", e.DataContentType())
		} else {
			header.Set("Ce-"+name, headerValue(fmt.Sprint(value)))
		}
	}
	return header, e.Data(), nil
}

// headerValue encodes non-printable and non-ASCII characters, space, quotation mark and percent sign (binding, section
// 3.1.3.2).
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

// RetryAfter returns how long an answer asks its sender to wait, in seconds or until a date. It is at most an hour, so
// that no receiver can silence a sender for a day.
func RetryAfter(header http.Header, now time.Time) time.Duration {
	value := header.Get("Retry-After")
	if seconds, err := strconv.Atoi(value); err == nil {
		return time.Duration(min(max(seconds, 0), int(time.Hour/time.Second))) * time.Second
	}
	if at, err := http.ParseTime(value); err == nil {
		return min(max(at.Sub(now), 0), time.Hour)
	}
	return 0
}
