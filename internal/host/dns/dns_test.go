package dns

import (
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/nodeagent/nodeagent/internal/host/owned/ownedtest"
)

func TestMain(m *testing.M) { ownedtest.Main(m) }

func FuzzParseDNS(f *testing.F) {
	question := dnsmessage.Question{Name: dnsmessage.MustNewName("a."), Type: dnsmessage.TypeA,
		Class: dnsmessage.ClassINET}
	good := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: 7, Response: true},
		Questions: []dnsmessage.Question{question},
		Answers: []dnsmessage.Resource{
			{Header: dnsmessage.ResourceHeader{Name: question.Name, Class: question.Class},
				Body: &dnsmessage.AResource{A: [4]byte{10, 0, 0, 1}}},
			{Header: dnsmessage.ResourceHeader{Name: question.Name, Class: question.Class},
				Body: &dnsmessage.CNAMEResource{CNAME: question.Name}},
		},
	}
	data, err := good.Pack()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add(data[:len(data)-3])
	f.Fuzz(func(t *testing.T, data []byte) {
		answer, ours, err := parseDNS(data, 7, question)
		if err != nil && (!ours || answer.RCode != "") {
			t.Errorf("%+v, %t, %v", answer, ours, err)
		}
		if ours && err == nil && answer.RCode == "" || len(answer.Addresses) > maxDNSAddresses {
			t.Errorf("%+v", answer)
		}
	})
}
