// A worker of a queue with franz-go's share consumer. Arguments: servers, topic, group, and `work` or `hold`.
//
// It prints each job that it gets, with the number of its deliveries. `work` does with a job what its kind says:
// `good` is accepted, `flaky` released once, `poison` always, `bad` rejected, and of a `long` one the lock is
// renewed before it is accepted. `hold` keeps what it got first until it is killed. SIGTERM ends it properly.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"

	"github.com/twmb/franz-go/pkg/kgo"
)

type job struct {
	Number int    `json:"number"`
	Kind   string `json:"kind"`
}

var printing sync.Mutex

func say(format string, values ...any) {
	printing.Lock()
	defer printing.Unlock()
	fmt.Printf(format+"\n", values...)
}

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	client, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(os.Args[1], ",")...),
		kgo.ConsumeTopics(os.Args[2]),
		kgo.ShareGroup(os.Args[3]),
		kgo.ShareMaxRecords(50),
		kgo.ShareAckCallback(func(_ *kgo.Client, results kgo.ShareAckResults) {
			if err := results.Error(); err != nil {
				say("failed %v", err)
			}
		}),
	)
	if err != nil {
		say("failed %v", err)
		os.Exit(1)
	}
	for ctx.Err() == nil {
		fetches := client.PollRecords(ctx, 50)
		for _, one := range fetches.Errors() {
			if ctx.Err() == nil {
				say("failed %v", one.Err)
			}
		}
		records := fetches.Records()
		for _, record := range records {
			var found job
			if err := json.Unmarshal(record.Value, &found); err != nil {
				say("failed %v", err)
			}
			say("took %s %d %d", found.Kind, found.Number, record.DeliveryCount())
			if os.Args[4] == "work" {
				end(ctx, client, record, found.Kind)
			}
		}
		if os.Args[4] == "hold" && len(records) > 0 {
			select {}
		}
		if err := client.FlushAcks(ctx); err != nil && ctx.Err() == nil {
			say("failed %v", err)
		}
	}
	client.LeaveGroup()
	client.Close()
}

func end(ctx context.Context, client *kgo.Client, record *kgo.Record, kind string) {
	switch {
	case kind == "bad":
		record.Ack(kgo.AckReject)
	case kind == "poison", kind == "flaky" && record.DeliveryCount() == 1:
		record.Ack(kgo.AckRelease)
	case kind == "long":
		record.Ack(kgo.AckRenew)
		if err := client.FlushAcks(ctx); err != nil && ctx.Err() == nil {
			say("failed %v", err)
		}
		record.Ack(kgo.AckAccept)
	default:
		record.Ack(kgo.AckAccept)
	}
}
