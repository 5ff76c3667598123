// Package dns sends questions to name servers. It does not resolve: it uses no part of the host's own resolver, no
// search list, no cache, no second server, no retry.
package dns

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
)

// maxDNSDatagram bounds an answer over UDP: without EDNS it may have 512 bytes. The format keeps an answer over TCP
// below 64 KiB.
const maxDNSDatagram = 4 << 10

// maxDNSAddresses bounds the addresses taken from one answer.
const maxDNSAddresses = 64

// DNSQuestion asks one server for the addresses of one name.
type DNSQuestion struct {
	Server   netip.AddrPort
	Protocol string // udp or tcp
	Name     string // fully qualified; the final dot may be omitted
	IPv6     bool   // AAAA instead of A
}

// DNSAnswer is a server's answer. RCode is "NOERROR", "NXDOMAIN", "SERVFAIL", "REFUSED" and so on.
type DNSAnswer struct {
	RCode     string
	Addresses []netip.Addr
}

// AskDNS sends one question and waits for its answer until ctx ends. It ignores messages from other addresses and
// answers to other questions. ECONNREFUSED means that the host or a packet filter on the way reported that no process
// listens.
func AskDNS(ctx context.Context, q DNSQuestion) (DNSAnswer, error) {
	answer, err := askDNS(ctx, q)
	if err != nil {
		return DNSAnswer{}, fmt.Errorf("ask %s over %s for %s: %w", q.Server, q.Protocol, q.Name, err)
	}
	return answer, nil
}

func askDNS(ctx context.Context, q DNSQuestion) (DNSAnswer, error) {
	id := uint16(rand.N(1 << 16)) //nolint:gosec // a connected socket with its own port; answers are trusted only briefly
	message, question, err := q.pack(id)
	if err != nil {
		return DNSAnswer{}, err
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, q.Protocol, q.Server.String())
	if err != nil {
		return DNSAnswer{}, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })() // ends a read that waits
	stream := q.Protocol == "tcp"
	if stream {
		message = append(binary.BigEndian.AppendUint16(nil, uint16(len(message))), message...) //nolint:gosec // below 300 bytes
	}
	if _, err := conn.Write(message); err != nil {
		return DNSAnswer{}, cmp.Or(ctx.Err(), err) // the end of ctx closes the connection
	}
	for {
		data, err := readDNS(conn, stream)
		if err != nil {
			return DNSAnswer{}, cmp.Or(ctx.Err(), err) // the end of ctx closes the connection
		}
		answer, matches, err := parseDNS(data, id, question)
		if matches {
			return answer, err
		}
	}
}

func (q DNSQuestion) pack(id uint16) ([]byte, dnsmessage.Question, error) {
	name, err := dnsmessage.NewName(strings.TrimSuffix(q.Name, ".") + ".")
	if err != nil {
		return nil, dnsmessage.Question{}, err
	}
	kind := dnsmessage.TypeA
	if q.IPv6 {
		kind = dnsmessage.TypeAAAA
	}
	question := dnsmessage.Question{Name: name, Type: kind, Class: dnsmessage.ClassINET}
	message := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: id, RecursionDesired: true},
		Questions: []dnsmessage.Question{question},
	}
	data, err := message.Pack()
	return data, question, err
}

// readDNS reads one message; over TCP its length comes first (RFC 1035, 4.2.2).
func readDNS(conn net.Conn, stream bool) ([]byte, error) {
	if !stream {
		data := make([]byte, maxDNSDatagram)
		n, err := conn.Read(data)
		return data[:n], err
	}
	var length [2]byte
	if _, err := io.ReadFull(conn, length[:]); err != nil {
		return nil, err
	}
	data := make([]byte, binary.BigEndian.Uint16(length[:]))
	_, err := io.ReadFull(conn, data)
	return data, err
}

// parseDNS parses an answer. It matches if it has the question's number and repeats the question; a server that cannot
// read the question may omit it.
func parseDNS(data []byte, id uint16, question dnsmessage.Question) (answer DNSAnswer, matches bool, err error) {
	var parser dnsmessage.Parser
	header, err := parser.Start(data)
	if err != nil || header.ID != id || !header.Response {
		return DNSAnswer{}, false, nil //nolint:nilerr // not the answer: the next datagram may be
	}
	questions, err := parser.AllQuestions()
	if err != nil {
		return DNSAnswer{}, true, fmt.Errorf("malformed answer: %w", err)
	}
	for _, q := range questions {
		if !strings.EqualFold(q.Name.String(), question.Name.String()) || q.Type != question.Type {
			return DNSAnswer{}, false, nil
		}
	}
	answer = DNSAnswer{RCode: rcode(header.RCode)}
	for len(answer.Addresses) < maxDNSAddresses {
		record, err := parser.Answer()
		if errors.Is(err, dnsmessage.ErrSectionDone) || header.Truncated && err != nil {
			break
		}
		if err != nil {
			return DNSAnswer{}, true, fmt.Errorf("malformed answer: %w", err)
		}
		switch body := record.Body.(type) {
		case *dnsmessage.AResource:
			answer.Addresses = append(answer.Addresses, netip.AddrFrom4(body.A))
		case *dnsmessage.AAAAResource:
			answer.Addresses = append(answer.Addresses, netip.AddrFrom16(body.AAAA))
		}
	}
	return answer, true, nil //nolint:nilerr // the end of the answers
}

// rcode names a response code as dig does.
func rcode(code dnsmessage.RCode) string {
	names := []string{"NOERROR", "FORMERR", "SERVFAIL", "NXDOMAIN", "NOTIMP", "REFUSED"}
	if int(code) < len(names) {
		return names[code]
	}
	return fmt.Sprintf("RCODE%d", code)
}
