package placement

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"

	pc "berth/placementclient"
)

// The microversions served.
const (
	minVersion pc.Microversion = 0
	maxVersion                 = pc.MaxMicroversion
)

const versionHeader = "Openstack-Api-Version"

// wantedVersion reads the OpenStack-API-Version header, which may speak of
// several services ("compute 2.79, placement 1.17"). None means 1.0.
func wantedVersion(h http.Header) (pc.Microversion, *refusal) {
	var wanted string
	values := strings.Split(strings.Join(h.Values(versionHeader), ","), ",")
	for i := len(values) - 1; i >= 0 && wanted == ""; i-- {
		service, v, found := strings.Cut(strings.TrimSpace(values[i]), " ")
		if found && strings.EqualFold(service, "placement") {
			wanted = strings.TrimSpace(v)
		}
	}
	switch wanted {
	case "":
		return minVersion, nil
	case "latest":
		return maxVersion, nil
	}
	parts := strings.SplitN(wanted, ".", 2)
	var numbers []int
	for _, p := range parts {
		n, err := strconv.Atoi(strings.TrimSpace(p))
		if err != nil {
			return 0, badRequest("Invalid microversion: invalid version string: %s; invalid literal for int() with base 10: '%s'", wanted, p)
		}
		numbers = append(numbers, n)
	}
	if len(numbers) != 2 {
		return 0, badRequest("Invalid microversion: invalid version string: %s; Version.__new__() missing 1 required positional argument: 'minor'", wanted)
	}
	if v := pc.Microversion(numbers[1]); numbers[0] == 1 && v >= minVersion && v <= maxVersion {
		return v, nil
	}
	return 0, refuse(http.StatusNotAcceptable, "Invalid microversion: Unacceptable version header: %s", wanted)
}

// versionsDocument is the answer to GET /, which needs no token.
func versionsDocument() any {
	return map[string]any{"versions": []any{map[string]any{
		"id": "v1.0", "status": "CURRENT",
		"min_version": minVersion.String(), "max_version": maxVersion.String(),
		"links": []any{map[string]any{"rel": "self", "href": ""}},
	}}}
}

// requestID makes the id by which a request is found in logs.
func requestID(uuid string) string { return fmt.Sprintf("req-%s", uuid) }
