package oidc

import (
	"slices"
	"strings"
	"unicode"
)

// Person is somebody who may read.
type Person struct {
	Name     string
	Operator bool // may also act on faults and declare maintenance
}

// person returns a permitted reader, by the claims of a token.
func (p *Provider) person(claims map[string]any) (Person, error) {
	name, _ := claims[p.NameClaim].(string)
	verified, given := claims["email_verified"] // some providers encode it as a text
	switch {
	case name == "":
		return Person{}, refused("the identity provider's token has no claim %q with a name", p.NameClaim)
	case len(name) > maxName || strings.ContainsFunc(name, unicode.IsControl):
		return Person{}, refused("the claim %q is no name of at most %d bytes", p.NameClaim, maxName)
	case p.NameClaim == "email" && given && verified != true && verified != "true":
		return Person{}, refused("the identity provider has not verified the address %s", name)
	}
	person := Person{name, slices.Contains(p.OperatorPeople, name)}
	reads := person.Operator || slices.Contains(p.People, name)
	groups, ok := claims[p.GroupsClaim].([]any)
	if one, single := claims[p.GroupsClaim].(string); single {
		groups, ok = []any{one}, true
	}
	for _, g := range groups {
		group, _ := g.(string)
		person.Operator = person.Operator || slices.Contains(p.OperatorGroups, group)
		reads = reads || person.Operator || slices.Contains(p.Groups, group)
	}
	if reads {
		return person, nil
	}
	if !ok && len(p.Groups)+len(p.OperatorGroups) > 0 {
		return Person{}, refused("%s may not read, and the identity provider's token has no claim %q", name, p.GroupsClaim)
	}
	return Person{}, refused("%s may not read: neither named nor a member of a group that may", name)
}
