#pragma once
// Who sends what to whom: every typed handle, and for every message one line on what it asks for and who
// sends it. Who spawns whom, and what happens when one dies, is in actors/topology.*; the messages themselves
// are in actors/messages.h.
//
//   front     HTTP ─▶ GATEWAY ─▶ SESSION HOST ─▶ TOKENIZER ─▶  rings ── text process
//                                  │   ▲
//                           Submit ▼   │ StepTokens (one a step)
//                              ENGINE LINK
//                                  │   ▲       rings
//   engine                     FRONT LINK
//                           Submit ▼   │ StepTokens
//                              SCHEDULER ◀─▶ CACHE MANAGER
//                                │   ▲            │  ▲
//                       SendPlan ▼   │ StepDone   ▼  │ CacheReport
//                                 WORKER LINK ──────────  rings ── worker process
//
// What comes over a link goes from its receiving thread straight to the actor that it is for, and what
// SESSION HOSTs and SCHEDULER send over one goes from them straight to the ring: the links' own actors carry
// questions and their answers.
//
// GRAMMAR compiles forms for SESSION HOST (Compile), hears from SCHEDULER (GrammarStep) and sends masks to
// WORKER LINK.
//
// MEDIA, in the front, measures the images of a request for SESSION HOST before its text becomes ids
// (MeasureMedia), and decodes them once these fit the model (PrepareMedia).
//
// SCHEDULER, SESSION HOST and GATEWAY report to METRICS. Every actor answers Beat. No handler blocks.
// Mailboxes are bounded by credits that the sender keeps: GATEWAY counts open Asks, SCHEDULER counts waiting
// sequences and plans in flight, a link the steps that the front has not taken.
#include <caf/all.hpp>
#include <chrono>

#include "actors/inspectors.h"

namespace troupe {

/// What every actor does with a Beat, which comes from the thread that watches them.
inline constexpr auto answer_beat = [](const Beat& beat) { beat.pulse->beat(); };

/// How long an actor waits for an answer that takes its neighbour one turn. A neighbour that has not answered
/// by then stands still, and the engine is about to be restarted.
inline constexpr std::chrono::seconds kTurnPatience{10};
/// What GATEWAY and SESSION HOST wait for beyond a request's own timeout, which SESSION HOST ends the request
/// at: for answers that are being written.
inline constexpr std::chrono::seconds kAfterTimeout{60};

/// Ends the deadline of a request that has been answered: CAF keeps some 190 bytes for each until it is over,
/// answered or not, so that with an hour each the requests of a day would fill the memory. `pending` is what
/// request() has returned.
template <class Self, class Pending>
auto deadline_end(Self self, const Pending& pending) {
  return [self, id = pending.id()] { self->clock().cancel_request_timeout(self, id); };
}

/// The same for a drain, which ends when the requests do: longer than any --drain-timeout.
inline constexpr std::chrono::minutes kDrainPatience{25 * 60};

/// Lets an actor answer a Probe, from ROOT, beside the messages of its own. Called first in every behaviour
/// but ROOT's.
inline void answer_probes(caf::scheduled_actor* self) {
  self->set_default_handler(
      [](caf::scheduled_actor* probed, caf::message_view& view) -> caf::result<caf::message> {
        if (!view.content().match_elements<Probe>()) return caf::print_and_drop(probed, view);
        return caf::make_message(ProbeAnswer{static_cast<std::int32_t>(probed->mailbox().size())});
      });
}

/// METRICS: counters and histograms of the whole server; keeps no history.
using metrics_actor = caf::typed_actor<caf::reacts_to<Beat>,
                                       // Adds one step's counters; from SCHEDULER.
                                       caf::reacts_to<StepStats>,
                                       // Adds one finished request; from SESSION HOST.
                                       caf::reacts_to<RequestStats>,
                                       // Adds one HTTP answer; from GATEWAY.
                                       caf::reacts_to<HttpStats>,
                                       // Adds connections that were not served; from GATEWAY.
                                       caf::reacts_to<DoorStats>,
                                       // What is in memory of images and videos; from MEDIA.
                                       caf::reacts_to<MediaStats>,
                                       // Which processes there are, and how often each was restarted; from
                                       // the engine's main thread.
                                       caf::reacts_to<ProcessReports>,
                                       // Answers with the Prometheus text; from GATEWAY.
                                       caf::replies_to<caf::get_atom>::with<std::string>>;

/// Who forgets published blocks for GATEWAY: ENGINE LINK, or CACHE MANAGER itself.
using published_blocks_actor = caf::typed_actor<caf::replies_to<ResetPrefixCache>::with<std::int32_t>>;

/// CACHE MANAGER: owns every KV block.
using cache_actor =
    caf::typed_actor<caf::reacts_to<Beat>,
                     // Releases, forks and grows leases; answers with what was granted; from SCHEDULER.
                     caf::replies_to<CacheAsks>::with<CacheGrants>,
                     // A command finished, or what the worker still holds; from WORKER LINK.
                     caf::reacts_to<CacheReport>,
                     // The pool's size is known, every lease is void; from WORKER LINK, before SCHEDULER
                     // hears of it.
                     caf::reacts_to<LinkUp>,
                     // Copies blocks of prompts that another instance computes, or does not any more; the
                     // front is gone; from FRONT LINK's thread.
                     caf::reacts_to<FrontExpects>, caf::reacts_to<ForgetBlocks>, caf::reacts_to<FrontLost>,
                     // Such blocks may have been named; from itself.
                     caf::reacts_to<CopyAhead>,
                     // Forgets every published block; answers with how many there were; from FRONT LINK.
                     caf::replies_to<ResetPrefixCache>::with<std::int32_t>,
                     // Answers with the block counts; from FRONT LINK.
                     caf::replies_to<caf::get_atom>::with<CacheStatus>>;

/// Who compiles forms for SESSION HOST: ENGINE LINK, or GRAMMAR itself.
using forms_actor = caf::typed_actor<caf::replies_to<Compile>::with<Compiled>, caf::reacts_to<CancelCompile>,
                                     caf::reacts_to<ReleaseGrammar>>;

/// GRAMMAR: holds answers to their forms. Compiles each form in a process that can be killed, follows its
/// sequences and makes the masks of their gated rows.
using grammar_actor =
    caf::typed_actor<caf::reacts_to<Beat>,
                     // Answers when the form is compiled or refused; from SESSION HOST.
                     caf::replies_to<Compile>::with<Compiled>,
                     // The request of a Compile has ended before it was answered; from SESSION HOST.
                     caf::reacts_to<CancelCompile>,
                     // The request has ended; from SESSION HOST.
                     caf::reacts_to<ReleaseGrammar>,
                     // Sequences, their tokens and the rows that wait; from SCHEDULER.
                     caf::reacts_to<GrammarStep>,
                     // A form is compiled or refused; from its own threads.
                     caf::reacts_to<FormReady>,
                     // Late masks have been made; from its own threads.
                     caf::reacts_to<TakeMade>>;

/// SCHEDULER: decides every step.
using scheduler_actor =
    caf::typed_actor<caf::reacts_to<Beat>,
                     // Takes all sequences or refuses all; their tokens go to the front as StepTokens; from a
                     // FRONT LINK's thread.
                     caf::reacts_to<FrontSubmit>,
                     // Ends sequences that nobody waits for; likewise.
                     caf::reacts_to<Cancel>,
                     // The front has taken steps, or is gone; likewise.
                     caf::reacts_to<FrontReady>, caf::reacts_to<FrontLost>,
                     // Answers whether nothing of the front is left; from FRONT LINK.
                     caf::replies_to<FrontSettled>::with<bool>,
                     // A step's result; from WORKER LINK.
                     caf::reacts_to<StepDone>,
                     // An image or a video has been encoded, or could not be; likewise.
                     caf::reacts_to<MediaReport>,
                     // Masks take too long for their step, or have been made after all; from GRAMMAR, to the
                     // sender of GrammarStep.
                     caf::reacts_to<MasksLate>, caf::reacts_to<MasksMade>,
                     // A sequence cannot be held to its form any longer; likewise.
                     caf::reacts_to<FormLost>,
                     // Fetches from the swap space have ended; from CACHE MANAGER, to the sender of the last
                     // CacheAsks.
                     caf::reacts_to<CacheGrants>,
                     // A worker is ready: a new epoch begins; from WORKER LINK.
                     caf::reacts_to<LinkUp>,
                     // The worker is gone: sequences wait for the next one; from WORKER LINK.
                     caf::reacts_to<LinkDown>,
                     // Answers with its queue; from FRONT LINK.
                     caf::replies_to<caf::get_atom>::with<SchedulerStatus>>;

/// SESSION HOST ×io: one per I/O thread; holds a Session for each open request.
using session_host_actor =
    caf::typed_actor<caf::reacts_to<Beat>,
                     // Opens a session; answered when it has ended and its credit is free; from GATEWAY.
                     caf::replies_to<Ask>::with<Closed>,
                     // The client went away; from GATEWAY.
                     caf::reacts_to<Withdraw>,
                     // One step's tokens of its sequences; from ENGINE LINK's thread, as the next three.
                     caf::reacts_to<StepTokens>,
                     // The engine did not take a Submit.
                     caf::reacts_to<Refused>,
                     // An engine has come, or its process is gone.
                     caf::reacts_to<EngineUp>, caf::reacts_to<EngineDown>,
                     // A request's timeout is over; from itself.
                     caf::reacts_to<Expire>,
                     // Writes more of a long answer; from itself.
                     caf::reacts_to<Resume>,
                     // Ends every session; from GATEWAY.
                     caf::reacts_to<Abandon>,
                     // Submits requests that wait to run alone, or for an engine; from itself.
                     caf::reacts_to<RetryAlone>, caf::reacts_to<WaitedForEngine>>;

/// GATEWAY: admission. Its HTTP side, an http::Backend, is in actors/gateway/gateway_actor.h.
using gateway_actor = caf::typed_actor<
    caf::reacts_to<Beat>,
    // Admits or refuses a call; from its HTTP side.
    caf::reacts_to<Ask>, caf::reacts_to<InfoAsk>,
    // A client went away; from its HTTP side, so that it never overtakes the Ask it concerns.
    caf::reacts_to<Withdraw>,
    // An engine's worker came, or it or the engine went: readiness; from ENGINE LINK's thread.
    caf::reacts_to<EngineServes>,
    // A text process has come; from TOKENIZER's thread.
    caf::reacts_to<TextUp>,
    // Refuses new work from now on; answers when nothing is open any more; from the control thread.
    caf::replies_to<Drain>::with<bool>,
    // Ends what is open; from the control thread.
    caf::reacts_to<Abandon>,
    // Answers with open requests and state; from the control thread.
    caf::replies_to<caf::get_atom>::with<EngineStatus>>;

/// Whom ENGINE LINK's receiving thread sends to.
struct FrontActors {
  gateway_actor gateway;
  std::vector<session_host_actor> hosts;
  metrics_actor metrics;
};
template <class I>
typename I::result_type inspect(I& f, FrontActors& x) {
  return f(caf::meta::type_name("FrontActors"), x.gateway, x.hosts, x.metrics);
}

/// Whom TOKENIZER's receiving thread sends to.
struct TextArrivals {
  gateway_actor gateway;
};
template <class I>
typename I::result_type inspect(I& f, TextArrivals& x) {
  return f(caf::meta::type_name("TextArrivals"), x.gateway);
}

/// TOKENIZER ×text process: the front's end of the link to it.
using tokenizer_actor =
    caf::typed_actor<caf::reacts_to<Beat>,
                     // Names who hears that the process has come, and begins to receive; from the ROOT, once.
                     caf::reacts_to<TextArrivals>,
                     // Answers with ids or with the request's fault; from SESSION HOST.
                     caf::replies_to<Encode>::with<Encoded>,
                     // An answer of the process, or that it is gone; from its own receiving thread.
                     caf::reacts_to<TextAnswer>, caf::reacts_to<LinkEpoch>>;

/// MEDIA: owns what is in memory of the images and videos of open requests, and of later ones' by cache.
/// There is none where the model does not see.
using media_actor = caf::typed_actor<caf::reacts_to<Beat>,
                                     // Answers with the sizes of a request's items, or with the fault of one;
                                     // from SESSION HOST.
                                     caf::replies_to<MeasureMedia>::with<MeasuredMedia>,
                                     // Answers when the patches of all are in memory; from SESSION HOST.
                                     caf::replies_to<PrepareMedia>::with<MediaReady>,
                                     // The request has ended; from SESSION HOST.
                                     caf::reacts_to<ReleaseMedia>,
                                     // Its threads have ended work; from them.
                                     caf::reacts_to<TakeMedia>,
                                     // Waits for memory may be over; from itself.
                                     caf::reacts_to<MediaWaited>,
                                     // What it holds and has counted; from the front's main thread.
                                     caf::replies_to<caf::get_atom>::with<MediaStats>>;

/// ENGINE LINK ×engine: the front's end of the link to it.
using engine_link_actor =
    caf::typed_actor<caf::reacts_to<Beat>,
                     // Names who hears of what comes over the link, and begins to receive; from the ROOT,
                     // once, before anything else.
                     caf::reacts_to<FrontActors>,
                     // Asked of the engine's GRAMMAR; from SESSION HOST. Answered with an error when the
                     // engine is gone, as are the others.
                     caf::replies_to<Compile>::with<Compiled>, caf::reacts_to<CancelCompile>,
                     caf::reacts_to<ReleaseGrammar>,
                     // Asked of its CACHE MANAGER; from GATEWAY.
                     caf::replies_to<ResetPrefixCache>::with<std::int32_t>,
                     // Answers with the state of its SCHEDULER and CACHE MANAGER; from the control thread.
                     caf::replies_to<caf::get_atom>::with<EngineStatus>,
                     // Answers with a report of every actor of the engine; from LIVE FEED's thread.
                     caf::replies_to<ProbeAll>::with<ActorReports>,
                     // An answer, that the engine is gone, or that the link is broken; from its own receiving
                     // thread.
                     caf::reacts_to<LinkMessage>, caf::reacts_to<LinkEpoch>, caf::reacts_to<LinkBroken>>;

/// ROOT of each process: watches the rest by the table in actors/topology.h.
using root_actor = caf::typed_actor<caf::reacts_to<Beat>,
                                    // Answers with a report of every actor; of one that does not answer
                                    // within 300 ms too; from FRONT LINK or LIVE FEED's thread.
                                    caf::replies_to<ProbeAll>::with<ActorReports>>;

/// Whose children FRONT LINK probes.
struct Supervised {
  root_actor root;
};
template <class I>
typename I::result_type inspect(I& f, Supervised& x) {
  return f(caf::meta::type_name("Supervised"), x.root);
}

/// FRONT LINK ×front: the engine's end of the link to a front.
using front_link_actor =
    caf::typed_actor<caf::reacts_to<Beat>,
                     // Names the ROOT; from it that spawns both, once, before a front can ask.
                     caf::reacts_to<Supervised>,
                     // The worker came or went, which the front is told; from WORKER LINK or RANK GROUP.
                     caf::reacts_to<LinkUp>, caf::reacts_to<LinkDown>,
                     // A question of the front, that it is gone, or that the link is broken; from its own
                     // receiving thread.
                     caf::reacts_to<LinkMessage>, caf::reacts_to<LinkEpoch>, caf::reacts_to<LinkBroken>>;

/// Who hears of what comes up a worker's link.
struct Attach {
  cache_actor cache;
  scheduler_actor scheduler;
  std::vector<front_link_actor> fronts;
};
template <class I>
typename I::result_type inspect(I& f, Attach& x) {
  return f(caf::meta::type_name("Attach"), x.cache, x.scheduler, x.fronts);
}

/// Who takes what the worker is to do, of one rank or of several: WORKER LINK or RANK GROUP.
using workers_actor = caf::typed_actor<caf::reacts_to<SendPlan>, caf::reacts_to<SendMedia>,
                                       caf::reacts_to<SendMasks>, caf::reacts_to<SendCacheCommand>>;

/// RANK GROUP: makes one worker of several ranks. There is none where one rank runs.
using rank_group_actor =
    caf::typed_actor<caf::reacts_to<Beat>,
                     // Names who hears of the group's records; from the ROOT, once, before anything else.
                     caf::reacts_to<Attach>,
                     // Goes to every rank; from SCHEDULER, GRAMMAR, CACHE MANAGER.
                     caf::reacts_to<SendPlan>, caf::reacts_to<SendMedia>, caf::reacts_to<SendMasks>,
                     caf::reacts_to<SendCacheCommand>,
                     // A rank's record or state; from its WORKER LINK.
                     caf::reacts_to<RankStepDone>, caf::reacts_to<RankMediaReport>,
                     caf::reacts_to<RankCacheReport>, caf::reacts_to<RankUp>, caf::reacts_to<RankDown>>;

/// RANK GROUP hears of what comes up a link, instead of those that Attach names.
struct Join {
  rank_group_actor group;
};
template <class I>
typename I::result_type inspect(I& f, Join& x) {
  return f(caf::meta::type_name("Join"), x.group);
}

/// WORKER LINK ×R: the engine's end of one rank's rings.
using worker_link_actor = caf::typed_actor<
    caf::reacts_to<Beat>,
    // Names who hears of the link's records; one of these from the ROOT, once, before anything else.
    caf::reacts_to<Attach>, caf::reacts_to<Join>,
    // Puts a plan on the step ring; from SCHEDULER, which keeps at most max_steps_in_flight out.
    caf::reacts_to<SendPlan>,
    // Puts what comes before a plan there, or beside plans; likewise, a bounded number.
    caf::reacts_to<SendMedia>,
    // Puts masks on the step ring, or keeps them until there is room; from GRAMMAR.
    caf::reacts_to<SendMasks>,
    // Tries again to put kept masks there; from itself.
    caf::reacts_to<RetryMasks>,
    // Puts a command on the cache ring; from CACHE MANAGER.
    caf::reacts_to<SendCacheCommand>,
    // A record that came up a ring, or the link's state; from its own receiving thread.
    caf::reacts_to<StepDone>, caf::reacts_to<MediaReport>, caf::reacts_to<CacheReport>,
    caf::reacts_to<LinkUp>, caf::reacts_to<LinkDown>,
    // Ends the actor, and with it the engine; from its own receiving thread.
    caf::reacts_to<LinkBroken>>;

}  // namespace troupe
