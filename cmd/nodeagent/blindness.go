package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// blindness lists the access that the agent lacks, each with the checks that it makes unknown.
type blindness []blindChecks

type blindChecks struct {
	finding.Access

	Checks []string `json:"checks"`
}

func (b *blindness) add(check string, lack finding.Access) {
	i := slices.IndexFunc(*b, func(known blindChecks) bool { return known.Access == lack })
	if i < 0 {
		i = len(*b)
		*b = append(*b, blindChecks{Access: lack})
	}
	(*b)[i].Checks = append((*b)[i].Checks, check)
}

func (b blindChecks) text() string {
	return fmt.Sprintf("%s: %s; to grant it: %s", strings.Join(b.Checks, ", "), oneLine(b.Lack), oneLine(b.Grant))
}
