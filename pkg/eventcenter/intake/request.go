package intake

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"sync"
	"time"
)

const (
	headSize = 4 << 10   // of a request, and of its body what comes with it; a longer head is for the http.Server
	maxBody  = 256 << 10 // agents send no more at once; a longer body is for the http.Server
)

// heads are the buffers of requests that are worked on.
type heads struct{ sync.Pool }

func (h *heads) get() *[headSize]byte {
	if b, ok := h.Get().(*[headSize]byte); ok {
		return b
	}
	return new([headSize]byte)
}

// request answers one request. It is false where the connection is not to be used any more.
func (c *conn) request() bool {
	buffer := c.of.heads.get()
	defer c.of.heads.Put(buffer)
	read, size, err := c.head(buffer)
	if err != nil {
		return false
	}
	r, ok := c.parse(buffer[:size])
	if left := int64(read - size); !ok || left > r.ContentLength {
		c.hand(c.from(bytes.Clone(buffer[:read])))
		return false
	}
	b := &body{conn: c, buffered: buffer[size:read], left: r.ContentLength}
	r.Body = b
	w := &response{body: b, header: http.Header{}, status: http.StatusOK}
	c.of.Handler.ServeHTTP(w, r)
	c.leave() // who does not read the answer, or does not send the rest, keeps nobody waiting
	reuse := b.discard() && !c.stopping()
	_, err = c.Write(w.text(reuse))
	return err == nil && reuse && c.ahead()
}

// atOnce is how long the head of a request may take that has a place: it is sent at once, as a rule. One that is not gives
// its place to another.
const atOnce = 250 * time.Millisecond

// head reads until a request's head has arrived, and returns how much was read, and how long the head is: 0 where it is too
// long.
func (c *conn) head(buffer *[headSize]byte) (read, size int, err error) {
	buffer[0], read = c.first[0], c.read
	begun, limit := time.Now(), min(atOnce, c.of.Head)
	if c.tls != nil { // all of a record may not be there
		err = c.SetReadDeadline(begun.Add(limit))
	}
	for err == nil && read < len(buffer) {
		var n int
		n, err = c.Read(buffer[read:])
		from := max(0, read-3)
		read += n
		if end := bytes.Index(buffer[from:read], []byte("\r\n\r\n")); end >= 0 {
			return read, from + end + 4, nil
		}
		if errors.Is(err, os.ErrDeadlineExceeded) && limit < c.of.Head {
			c.leave()
			limit, err = c.of.Head, nil
		}
		if err == nil { // most come at once
			err = c.SetReadDeadline(begun.Add(limit))
		}
	}
	return read, 0, err
}

// parse reads the head of a request as agents write it: a few headers, each of them once.
func (c *conn) parse(head []byte) (*http.Request, bool) {
	line, rest, _ := bytes.Cut(head, []byte("\r\n"))
	if string(line) != "POST "+c.of.Path+" HTTP/1.1" {
		return nil, false
	}
	header := make(http.Header, 5)
	length := int64(0)
	for {
		line, rest, _ = bytes.Cut(rest, []byte("\r\n"))
		if len(line) == 0 {
			break
		}
		before, after, found := bytes.Cut(line, []byte(": "))
		name, known := known(before)
		if !found || !known || !isValue(after) {
			return nil, false
		}
		if header[name] != nil {
			return nil, false
		}
		header[name] = []string{string(after)}
	}
	if values := header["Content-Length"]; len(values) == 1 && len(values[0]) < 7 && values[0][0] != '+' {
		length, _ = strconv.ParseInt(values[0], 10, 64)
	}
	host := header.Get("Host")
	delete(header, "Host") // as an http.Server has it
	if !isHost(host) || length <= 0 || length > maxBody || len(rest) > 0 {
		return nil, false
	}
	return &http.Request{Method: http.MethodPost, URL: &url.URL{Path: c.of.Path}, Proto: "HTTP/1.1", ProtoMajor: 1,
		ProtoMinor: 1, Header: header, ContentLength: length, Host: host, RemoteAddr: c.remote, RequestURI: c.of.Path,
		TLS: c.tls}, true
}

// known returns the name of a header that agents send.
func known(name []byte) (string, bool) {
	for _, known := range [...]string{"Host", "User-Agent", "Content-Length", "Authorization", "Content-Type"} {
		if string(name) == known {
			return known, true
		}
	}
	return "", false
}

// isValue reports whether a text is printable, and neither empty nor with a space at an end.
func isValue(text []byte) bool {
	for _, b := range text {
		if b < ' ' || b >= 0x7f {
			return false
		}
	}
	return len(text) > 0 && text[0] != ' ' && text[len(text)-1] != ' '
}

// isHost reports whether a text is a name or an address, with or without a port.
func isHost(text string) bool {
	for i := range len(text) {
		b := text[i]
		if (b < 'a' || b > 'z') && (b < 'A' || b > 'Z') && (b < '0' || b > '9') && b != '-' && b != '.' && b != ':' &&
			b != '[' && b != ']' {
			return false
		}
	}
	return text != ""
}

// body is that of a request.
type body struct {
	conn     *conn
	buffered []byte // what came with the head
	left     int64  // with what is buffered
}

func (b *body) Read(p []byte) (n int, err error) {
	if b.left == 0 {
		return 0, io.EOF
	}
	p = p[:min(int64(len(p)), b.left)]
	if len(b.buffered) > 0 {
		n = copy(p, b.buffered)
		b.buffered = b.buffered[n:]
	} else if n, err = b.conn.Read(p); errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	b.left -= int64(n)
	return n, err
}

func (b *body) Close() error { return nil }

// discard reads what the handler left. It is false where it does not come.
func (b *body) discard() bool {
	if b.left > int64(len(b.buffered)) && b.conn.SetReadDeadline(time.Now().Add(b.conn.of.Body)) != nil {
		return false
	}
	_, err := io.Copy(io.Discard, b)
	return err == nil
}

// response is an answer, which is kept until it is complete.
type response struct {
	body   *body
	header http.Header
	status int
	began  bool
	answer bytes.Buffer
}

// Header implements http.ResponseWriter.
func (w *response) Header() http.Header { return w.header }

// Waited returns how long the request waited for others before anything of it was read.
func (w *response) Waited() time.Duration { return w.body.conn.waited }

// WriteHeader implements http.ResponseWriter.
func (w *response) WriteHeader(status int) {
	if !w.began {
		w.status, w.began = status, true
	}
}

// Write implements http.ResponseWriter.
func (w *response) Write(data []byte) (int, error) {
	w.began = true
	return w.answer.Write(data)
}

// SetReadDeadline is for http.ResponseController. A body that is there needs none.
func (w *response) SetReadDeadline(deadline time.Time) error {
	if w.body.left == int64(len(w.body.buffered)) {
		return nil
	}
	return w.body.conn.SetReadDeadline(deadline)
}

// text is what is sent. The status and the length are this server's to say.
func (w *response) text(reuse bool) []byte {
	var text bytes.Buffer
	text.Grow(512 + w.answer.Len())
	text.WriteString("HTTP/1.1 " + strconv.Itoa(w.status) + " " + http.StatusText(w.status) + "\r\nDate: ")
	text.Write(time.Now().UTC().AppendFormat(text.AvailableBuffer(), http.TimeFormat))
	text.WriteString("\r\nContent-Length: " + strconv.Itoa(w.answer.Len()) + "\r\n")
	if !reuse {
		text.WriteString("Connection: close\r\n")
	}
	_ = w.header.Write(&text) // to memory
	text.WriteString("\r\n")
	text.Write(w.answer.Bytes())
	return text.Bytes()
}

// replayed is a connection of which something was read already.
type replayed struct {
	net.Conn
	read []byte
}

func (r *replayed) Read(p []byte) (int, error) {
	if len(r.read) > 0 {
		n := copy(p, r.read)
		r.read = r.read[n:]
		return n, nil
	}
	return r.Conn.Read(p)
}

// secured is a replayed connection with TLS, of which an http.Server wants to know who the client is.
type secured struct {
	replayed
	state tls.ConnectionState
}

// ConnectionState is for the http.Server.
func (s *secured) ConnectionState() tls.ConnectionState { return s.state }

// from returns the connection with what was read of it.
func (c *conn) from(read []byte) net.Conn {
	if c.tls != nil {
		return &secured{replayed{c.Conn, read}, *c.tls}
	}
	return &replayed{c.Conn, read}
}
