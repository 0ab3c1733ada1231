# SPDX-License-Identifier: Apache-2.0
"""Writes the corpus of the shipped model: short fables, each told by a grammar over one consistent cast.

A story draws a cast, a place, a weather and an arc; the arc is a list of beats, a beat a list of ways to
tell it. `python3 fable_text.py 5` prints five stories.

Template notation: {slot} is filled from the cast, [a|b|c] picks one, innermost first. The first letter of
a beat, of a sentence and of direct speech is capitalised; what follows a closing quote is left as written,
so a new sentence there uses the capital slots ({He}, {E}, {T}).
"""

import random
import re
import sys

# ---------------------------------------------------------------- the cast

# kind: (home, hand, way of going, favourite food, flags); flags: f flies, w at home in water, p person
KINDS = {
    "fox": ("a snug den", "paw", "trotted", "blackberries", ""),
    "rabbit": ("a warm burrow", "paw", "hopped", "clover", ""),
    "mouse": ("a tiny hole under a root", "paw", "scurried", "seeds", ""),
    "bear": ("a dry cave", "paw", "lumbered", "honey", ""),
    "hedgehog": ("a nest of leaves", "paw", "shuffled", "apples", ""),
    "squirrel": ("a hollow tree", "paw", "scampered", "acorns", ""),
    "girl": ("a small cottage", "hand", "walked", "warm bread", "p"),
    "boy": ("a small cottage", "hand", "walked", "pancakes", "p"),
    "duck": ("a nest among the reeds", "wing", "waddled", "watercress", "fw"),
    "frog": ("a house of moss", "hand", "hopped", "dumplings", "w"),
    "owl": ("the top of a tall pine", "wing", "flew", "plum pie", "f"),
    "tortoise": ("a sandy hollow", "foot", "plodded", "lettuce", ""),
    "otter": ("a den in the riverbank", "paw", "padded", "fish soup", "w"),
    "badger": ("a deep, tidy burrow", "paw", "marched", "mushrooms", ""),
    "crow": ("a nest of black twigs", "wing", "flew", "cherries", "f"),
    "cat": ("a basket by a warm stove", "paw", "padded", "cream", ""),
    "dog": ("a wooden hut", "paw", "ran", "pie crusts", ""),
    "goat": ("a shed of old boards", "hoof", "skipped", "thistles", ""),
    "lamb": ("a straw bed in the barn", "hoof", "skipped", "sweet grass", ""),
    "donkey": ("a stable with a blue door", "hoof", "clopped", "carrots", ""),
    "mole": ("a long, dark tunnel", "paw", "shuffled", "turnips", ""),
    "beaver": ("a lodge of sticks", "paw", "waddled", "willow bark", "w"),
    "sparrow": ("a nest under the roof", "wing", "fluttered", "crumbs", "f"),
    "fawn": ("a bed of ferns", "hoof", "stepped", "green leaves", ""),
    "dragon": ("a cave full of old pots", "claw", "stomped", "hot pepper soup", ""),
    "wolf": ("a den under the rocks", "paw", "loped", "stew", ""),
    "lion": ("a cave of yellow stone", "paw", "strode", "sweet melons", ""),
    "monkey": ("a bed of leaves high in a tree", "hand", "strolled", "figs", ""),
    "elephant": ("a shady grove", "foot", "tramped", "bananas", ""),
    "goose": ("a nest of soft grass", "wing", "waddled", "barley", "fw"),
}
ELDERS = ["owl", "tortoise", "badger", "goat", "heron", "toad", "bear", "donkey", "crow"]
STRANGERS = ["beetle", "mouse", "sparrow", "bee", "hare", "snail", "mole", "robin", "lizard", "magpie", "toad",
             "ant", "moth", "squirrel"]
GIRLS = ["Mira", "Hazel", "Luna", "Poppy", "Nell", "Willa", "Ivy", "Rosie", "Olive", "Tansy", "Daisy", "Clara",
         "Maple", "Bella", "Wilma", "Lottie", "Juno", "Fern", "Sasha", "Lily", "Ada", "Molly", "Pearl", "Tilly"]
BOYS = ["Pip", "Finn", "Otto", "Bram", "Hugo", "Milo", "Jasper", "Toby", "Basil", "Felix", "Rufus", "Oskar",
        "Barnaby", "Tobin", "Ben", "Leo", "Sam", "Max", "Arlo", "Tom", "Ned", "Gus", "Wilbur", "Jack"]
ADJECTIVES = ["little", "young", "small", "clever", "curious", "cheerful", "brave", "gentle", "lively", "shy"]

# place: (phrases that say where, spots in it)
PLACES = {
    "forest": (["in a quiet forest", "deep in the forest", "at the edge of a great forest", "in the heart of an old forest"],
               ["the old oak tree", "the mossy rock", "the hollow log", "the fern path", "the little spring", "the blackberry bushes"]),
    "meadow": (["in a green meadow", "at the edge of a wide meadow", "in a meadow full of flowers"],
               ["the stone wall", "the lone birch tree", "the clover patch", "the crooked gate", "the tall grass", "the old haystack"]),
    "river": (["beside a wide river", "on the bank of a slow river", "where the river turns"],
              ["the wooden bridge", "the bent willow", "the flat stones", "the reeds", "the old mill", "the sandy bank"]),
    "valley": (["in a quiet valley", "in a green valley between two hills", "in a deep valley"],
               ["the round hill", "the old well", "the narrow path", "the ruined tower", "the apple trees", "the stone bridge"]),
    "village": (["near a small village", "in a village by the sea", "at the edge of a sleepy village"],
                ["the market square", "the bakery", "the old well", "the windmill", "the garden wall", "the harbour"]),
    "mountain": (["at the foot of a snowy mountain", "high on a mountain", "on the sunny side of a mountain"],
                 ["the tall pines", "the goat path", "the cold stream", "the stone hut", "the great cliff", "the windy pass"]),
    "lake": (["beside a still lake", "on the shore of a blue lake", "near a round, silver lake"],
             ["the old pier", "the reeds", "the pebble beach", "the sleeping boat", "the tall poplars", "the quiet bay"]),
    "farm": (["on an old farm", "on a farm at the end of the road", "on a busy little farm"],
             ["the red barn", "the duck pond", "the orchard", "the wheat field", "the pumpkin patch", "the wooden fence"]),
    "island": (["on a small island", "on an island far out in the sea"],
               ["the white beach", "the lighthouse", "the palm grove", "the smooth rocks", "the little cove", "the green hill"]),
}
WEATHER = {
    "rainy": ["Rain [drummed on the leaves|ran down every stone|fell in soft gray lines].", "There were puddles everywhere."],
    "sunny": ["The sun [shone warmly|lay like gold on everything].", "There was not a cloud in the sky."],
    "windy": ["The wind [tugged at every branch|chased the leaves in circles].", "Even the clouds were in a hurry."],
    "cold": ["Frost [glittered on the ground|had painted the grass white].", "Every breath made a small white cloud."],
    "misty": ["Mist [lay over everything|hung between the trees] like a blanket.", "It was hard to see more than ten steps ahead."],
    "warm": ["The air smelled of [flowers|hay|honey].", "The bees were humming."],
    "snowy": ["Snow [fell without a sound|covered every path].", "The whole world looked new and white."],
    "quiet": ["Not a leaf was moving.", "The only sound was [a bird far away|the water]."],
}
ITEMS = [("red", "scarf"), ("silver", "bell"), ("blue", "kite"), ("wooden", "flute"), ("golden", "button"),
         ("yellow", "hat"), ("small", "lantern"), ("green", "umbrella"), ("shiny", "whistle"), ("round", "mirror"),
         ("woollen", "blanket"), ("painted", "drum"), ("brass", "key"), ("glass", "marble"), ("soft", "cushion")]
TREATS = ["blackberries", "apples", "pears", "nuts", "cherries", "raspberries", "plums", "figs", "strawberries"]
GIVERS = ["grandmother", "grandfather", "mother", "father", "aunt", "uncle"]
SKILLS = [("play the flute", "flute", "tune"), ("bake bread", "spoon", "loaf"), ("play the drum", "drum", "song"),
          ("paint pictures", "brush", "picture"), ("weave baskets", "willow twigs", "basket"),
          ("skip stones", "flat stones", "throw"), ("sew", "needle", "stitch"), ("carve wood", "knife", "spoon")]
GOALS = ["the big stone by the bridge", "the far side of the hill", "the lonely pine", "the old gate",
         "the top of the ridge", "the white rock"]

HAPPY = "[happy|glad|pleased|full of joy|delighted]"
SAD = "[sad|unhappy|downcast|miserable]"
SAID = "[said|said|replied|answered]"


def pick(rng, options):
    """One of the options. The first two are favoured, so that the model's best next token is rarely a tie."""
    weights = [2.0, 1.35] + [1.0] * len(options)
    return rng.choices(options, weights[:len(options)])[0]


def favour(rng, options, turn):
    """One of the options, with the one at `turn` and the next favoured clearly.

    The turn comes from an earlier draw, so that other heroes get other stories, and so that no name or kind is
    the favourite of hero and friend alike: a small model would give both the same one.
    """
    turn %= len(options)
    weights = [6.0, 3.0] + [1.0] * len(options)
    return rng.choices(options[turn:] + options[:turn], weights[:len(options)])[0]


# ---------------------------------------------------------------- openings

# Each opening names the hero, the kind and the place. TIMED ones also use up the weather.
OPENINGS = [
    "Once upon a time, there [was|lived] a {hadj} {hk} [named|called] {h}. {He} lived {pin}[, in {hhome}||, not far from {s1}].",
    "Once upon a time, {pin}, there lived a {hadj} {hk} [named|called] {h}.",
    "Once upon a time, a {hadj} {hk} [named|called] {h} lived {pin}[| with {his} {giver}].",
    "There was once a {hadj} {hk} [named|called] {h} who lived {pin}.",
    "[Long ago|Many years ago|A long time ago], {pin}, [there lived|lived] a {hadj} {hk} [named|called] {h}.",
    "{pin}, there lived a {hadj} {hk} [named|called] {h}.",
    "{h} was a {hadj} {hk} who lived {pin}[|, in {hhome}].",
    "The {hadj} {hk} lived {pin}[|, in {hhome}]. [{His} name was {h}|Everyone called {him} {h}].",
    "A {hadj} {hk} [named|called] {h} [once lived|had a home] {pin}.",
    "{h} the {hk} lived {pin}, [in {hhome}|close to {s1}|where {s1} could be seen from the door].",
    "Everyone who lived {pin} knew {h}, the {hadj} {hk}.",
    "The {hk} and the {fk} lived {pin}. The {hk} was called {h}, and the {fk} was called {f}.",
    "This is the story of {h}, a {hadj} {hk} who lived {pin}.",
    "[In a land far away|Far, far away], {pin}, there lived a {hadj} {hk} [named|called] {h}.",
    "{h} and {f} lived {pin}. {h} was a {hadj} {hk}, and {f} was {fa}.",
    "Have you heard of {h}, the {hadj} {hk}? {He} lived {pin}[|, in {hhome}].",
]
# Spoken before the opening in a few stories.
PRELUDES = [
    "Hello, my name is {n}, and I am going to tell you a story.",
    "[Tell me a story, you say?|You want a story?] Then listen well.",
    "\"Tell me a story,\" said [the child|the little one]. [And so the story began.|So this story was told.]",
    "[I will tell you a story|Let me tell you a story] [about a {hk}|that my {giver} told me].",
    "Listen, and I will tell you [a true story|an old story].",
]
TIMED_OPENINGS = [
    "One {w} {tod}, a {hadj} {hk} [named|called] {h} {hwent} [past|out to|along to] {s1}. {wsay} {h} lived {pin}[|, in {hhome}].",
    "It was a {w} {tod} {pin}. {wsay} A {hadj} {hk} [named|called] {h} [looked out of {his} door|sat near {s1}|was already up and about].",
    "The {hadj} {hk} {hwent} out [on|into] a {w} {tod}. [{His} name was {h}|Everyone called {him} {h}], and {he} lived {pin}.",
    "One {w} {tod}, {h} the {hk} [woke early|came out of {his} home|sat down near {s1}]. {wsay} {h} lived {pin}.",
    "On a {w} {tod}, when [nobody else was about|most of the animals were still at home], a {hadj} {hk} named {h} {hwent} to {s1}. {He} lived {pin}.",
]

# A glimpse of everyday life after the opening, in some stories.
DETAILS = [
    "[In the mornings|Every morning] {he} ate {hfood}, and in the evenings {he} [watched the stars|told stories by the fire].",
    "{he} [liked {hfood} and long stories|liked nothing better than {hfood}].",
    "From {his} door {he} could see {s1} and {s2}.",
    "{he} knew every path from {s1} to {s2}.",
    "The neighbours liked {him}, and [{he} liked them|they often came for supper].",
    "On fine days {he} sat near {s1} and [dreamed|sang to {himself}].",
]
FAREWELLS = [
    "And if you ever come to {s1}, you may [see them there|hear them laughing].",
    "They [still tell this story|tell it to this day] near {s1}.",
    "That evening {h} went to bed [early|with a smile], and [slept until the sun was high|dreamed of tomorrow].",
]

# ---------------------------------------------------------------- arcs

PARA = "\n\n"
FROSTLESS_ARCS = ("share", "winter", "seed", "flatterer")  # fruit, seeds and summer
FROST = ("cold", "snowy")

ARCS = {}

ARCS["lost"] = [
    ["{h} had {oa} that {his} {giver} had [given {him}|made just for {him}], and {he} [took it everywhere|loved it more than anything].",
     "Of all the things {he} owned, {h} [loved|treasured] {his} {o} the most. It was {oa}, and [it had once belonged to {his} {giver}|there was no other like it].",
     "{His} {giver} had given {him} {oa}, and {h} [never went out without it|was very proud of it]."],
    [PARA + "{one}, {h} [reached for|looked for] {his} {o}, but it was gone. {He} looked [under the bed and behind the door|in every corner|high and low], and found only dust.",
     PARA + "{one}, {h} came home from {s1} and [felt that something was wrong|stopped at the door]. The {o} was gone! \"[Oh no|Oh dear]! I must have dropped it on the way,\" {he} cried.",
     PARA + "But {one}, the {o} was [gone|nowhere to be found]. {h} searched [all day|until {his} eyes hurt], and {his} heart grew [heavier and heavier|heavy]."],
    ["{he} [was too proud to ask for help|did not want anyone to know], so {he} searched alone. {He} looked near {s2}, [and found nothing|but there was nothing but grass]. {He} looked near {s3}, [and found nothing there either|but found only an old shoe].",
     "{he} {hwent} to {s2} and looked [around every stone|under every leaf]. There was no {o}. Then {he} {hwent} to {s3}, but [there was no {o} there either|it was not there]. [At last {he} sat down and cried|{h} felt like crying].",
     "First {h} went back to {s2}, and then to {s3}, but the {o} was [in neither place|not there]."],
    [PARA + "{f} the {fk} came by and [saw {him}|stopped]. \"[Why are you so sad|What is the matter], {h}?\" {fhe} asked. \"I have lost my {o},\" said {h}. \"[I did not want to trouble anyone|I have looked everywhere].\" \"[Two pairs of eyes see more than one|Then let us look together],\" said {f}.",
     PARA + "Near {s3} {he} met {f}, {fa}. \"You look [tired|sad],\" said {f}. \"[Tell me what happened.|What are you looking for?]\" {h} told {fhim} everything. \"[That is easy to mend|Then I will help you],\" said {f}. \"[Think. Where did you rest today|When did you last have it]?\"",
     PARA + "In the end {he} knocked at the door of {f}, {fa}. \"[Please help me|I need your help], {f},\" {he} said. \"I have lost my {o}.\" \"[I am glad you asked|Of course I will help],\" said {f}, and [put on {fhis} coat|came out at once]."],
    ["They went back along the way, step by step. [Soon|Before long] {f} pointed {up}. [There|And there], [caught on a twig|half hidden under a leaf|shining in the light], was the {o}!",
     "Together they searched near {s1}, [slowly and carefully|one on each side]. \"[Here|Look here]!\" called {f}. The {o} had [slipped behind a stone|fallen between two roots|rolled under a bush].",
     "They asked {t} who lived near {s1}. \"[I saw something odd this morning,|Is this what you are looking for?]\" said {tt}, and [showed them|led them to] the {o}, safe and dry."],
    [PARA + "{h} [hugged {f}|danced with joy|laughed out loud]. \"[Thank you|Thank you, dear friend]! I [should have asked you at once|would never have found it alone],\" {he} said.",
     PARA + "\"[You found it|There it is]!\" cried {h}. {He} was so " + HAPPY + " that {he} [hugged everyone|sang all the way home]. \"Next time I will ask [sooner|first],\" {he} said."],
    ["From that day on, {h} [was never too proud to ask for help|knew that asking for help is no shame].",
     "And {h} learned that a trouble shared is [only half a trouble|soon mended].",
     "[A lost thing is found sooner|The search is shorter] when friends [look together|help]."],
]

ARCS["kindness"] = [
    ["{h} was [known for {his} kind heart|always ready to help], even when [others laughed at {him}|{he} was in a hurry].",
     "{h} had little, but [{he} gave gladly|what {he} had {he} shared].",
     "{His} {giver} had always told {him}, \"[Be kind to everyone, large or small|No one is too small to be helped].\" {h} never forgot it."],
    [PARA + "{one}, near {s1}, {he} heard a [tiny|weak|small] voice. \"[Help|Please help me]!\" It was {t}, who had [fallen into a puddle|got stuck under a branch|been caught in a thorn bush].",
     PARA + "{one}, {h} {hwent} to {s1} and found {t} [lying on its back|stuck in the mud|tangled in a string]. \"[Will you help me|Nobody stops for me],\" said {tt} in a [tiny|sad] voice."],
    ["\"[Do not be afraid|Hold still],\" said {h}. {He} [lifted {tt} gently with one {hand}|knelt down and set {tt} free]. \"[There|There you are]! You are safe now.\"",
     "{h} was on {his} way to [a feast|the market], but {he} stopped. Slowly and gently, {he} [pulled {tt} out|set {tt} free], [dried it with a leaf|gave it a drink of water] and [wished it well|carried it home]."],
    ["\"[Thank you|You are very kind],\" said {tt}. \"[One day I will help you|I will not forget this].\" {f} the {fk}, who was watching, laughed. \"[How could such a small thing help anyone|What can {t} do for you]?\" {fhe} asked. {h} only smiled.",
     "\"[I have nothing to give you|I cannot pay you],\" said {tt}, \"~[but one day I may be of use|but I will remember you].\" \"[There is no need|That is quite enough],\" said {h}, and {hwent} home."],
    [PARA + "[Some weeks later|When autumn came|Not long after], {h} lost {his} way near {s2}. [Night fell|It grew dark], and [a storm was coming|the wind howled]. {He} called and called, but nobody [answered|came].",
     PARA + "[Some days later|The next month], {h} was caught in a net that [a hunter|someone] had left near {s2}. {He} [pulled|turned and twisted], but the ropes [held fast|only grew tighter]. {f} the {fk} [tried to help|pulled too], but the knots were too [small|tight] for {fhim}."],
    ["Then {he} heard a [tiny|well known] voice. It was {tt}! \"[You helped me, and now I will help you|I have come to help],\" it said. It [called all its brothers and sisters|worked all night without a rest], and before the sun came up, {h} was [safe|free].",
     "All at once, {tt} was there. \"[I said I would not forget,|Did you think I had forgotten?]\" it said. With [patience|great care], bit by bit, it [helped {him} out|saw to it that {h} came home], and not a hair on {his} head was hurt."],
    [PARA + "\"[How can I ever thank you?|You saved me!]\" cried {h}. \"[You were good to me first|You helped me long ago],\" said {tt}. [After that, the two were friends for life|From then on they had supper together every week].",
     PARA + "{h} was so " + HAPPY + " that {he} [made a great supper|invited everyone to {hhome}], and {tt} [sat in the best seat|was the guest of honour]."],
    ["No kindness is ever [wasted|lost], however small.",
     "So it is with kindness: [what you give comes back|it always finds its way home].",
     "And nobody ever laughed at small friends again."],
]

ARCS["share"] = [
    ["{h} loved {treat} [more than anything|above all else], but {he} did not love to share.",
     "{h} was [cheerful|good] at most things, but sharing was not one of them.",
     "Now {h} had one fault: [what was {his}, {he} kept|{he} could not bear to share]."],
    [PARA + "{one}, {he} found a [place|whole basket] full of {treat} near {s1}. [There were enough for everyone|{He} had never seen so many]. \"[These are all mine|I will tell nobody],\" {he} whispered.",
     PARA + "{one}, {h} filled a great sack with {treat}. It was so heavy that {he} could [hardly move it|only drag it along]. Still, {he} wanted [more|every last one]."],
    ["{f} the {fk} came by. \"[What lovely {treat}|Those look good]!\" {fhe} said. \"[May I have one|Could you spare a few]? I have not eaten today.\" \"No,\" said {h}. \"[I found them, so they are mine|There are not enough].\" {f} [went away hungry|sighed and went on].",
     "Soon {f}, {fa}, came along. \"[I am so hungry|That smells wonderful],\" said {f}. \"[Will you give me some|May I try one]?\" {h} [held the {treat} tight|turned {his} back]. \"[Find your own|Not even one],\" {he} " + SAID + "."],
    [PARA + "That night {h} ate and ate until {his} belly [ached|was as round as a drum]. {He} [groaned|lay awake], and nobody came to [comfort|see] {him}. And what was left of the {treat} [began to spoil|was soft and brown by morning].",
     PARA + "{h} hid the {treat} near {s2}, [covered them with leaves|under a heap of stones], and sat there to guard them all night. {He} was cold and [lonely|tired]. In the morning, {he} saw that [the rain had ruined them|half of them were spoiled]."],
    ["\"[What have I gained|What good is a feast with no friends]?\" {h} thought. {He} remembered the hungry face of {f}, and {he} was ashamed.",
     "The old {ek} saw it all. \"[A heavy sack makes a lonely road|You kept everything, and now you have nothing],\" {ehe} said. {h} hung {his} head, for {he} knew that it was true."],
    [PARA + "So {h} took the [best|last good] {treat} and {hwent} to the home of {f}. \"[I am sorry|Please forgive me],\" {he} said. \"[I was selfish|I was wrong]. [Will you eat with me?|These are for you.]\" {f} [smiled|opened the door wide]. \"[Come in|Gladly],\" {fhe} said. \"[I have made soup|There is room at my table].\"",
     PARA + "{h} gathered what was left and {hwent} from door to door. {He} gave some to {f}, some to the old {ek}, and some to [everyone {he} met|the smallest mice]. [Everyone was surprised|Nobody could believe it]. They all ate together [near {s1}|under the stars]."],
    ["The {treat} had never tasted so [good|sweet].",
     "There were only a few for each, but {h} had never [been so full|eaten so well].",
     "And {h} found that half a meal with a friend is better than a whole one alone."],
    ["[What we share grows sweeter|Sharing makes a little into plenty].",
     "From then on, {h} always [kept a place at {his} table|put the biggest ones aside for {his} friends]."],
]

ARCS["boast"] = [
    ["{h} was [fast|quick on {his} feet], and [{he} told everyone so|never let anyone forget it]. \"[Nobody is faster than I am|I am the fastest of all],\" {he} said [every day|again and again].",
     "There was only one thing wrong with {h}: {he} boasted [from morning to night|all day long]. \"[Look how fast I am!|Who can keep up with me?]\" {he} would say."],
    [PARA + "{one}, {f} the {fk} had heard enough. \"[Let us have a race|Will you race me], then,\" {fhe} said quietly. \"[To {goal}|From here to {goal}].\" {h} laughed [until {he} had to sit down|loudly]. \"You? [You are much too slow|This will be easy]!\"",
     PARA + "{one}, everyone met near {s1}. \"[Who will race with me to {goal}|Is there anyone who dares to race me to {goal}]?\" {h} called. [At first nobody spoke|It was quiet]. Then {f}, {fa}, stepped forward. \"[I will try|I will],\" {fhe} said."],
    ["The old {ek} [dropped a leaf to start the race|counted to three]. {h} shot off [like an arrow|in a cloud of dust]. {f} set out [slowly but surely|at {fhis} own pace].",
     "\"Ready? Go!\" called the old {ek}. In [a moment|no time] {h} was far ahead. {f} [did not hurry|went along steadily], and looked well where {fhe} was going."],
    [PARA + "Halfway there, {h} looked back and [waved to the crowd|saw no one]. \"[I have time to show off|I could win this with my eyes closed],\" {he} thought. {He} [turned a somersault|jumped over a ditch for fun], slipped, and [landed in deep mud|fell into a muddy ditch]. {He} [pulled and pulled|tried and tried], but {he} was stuck.",
     PARA + "{h} was so sure of winning that {he} took a path {he} did not know. \"[It must be shorter|I need no map],\" {he} said. But the path ended in a bog, and {he} sank in up to {his} [chin|belly]. \"[Help|Oh, help]!\" {he} cried."],
    ["[After a while|Before long] {f} came by. {fHe} could have [gone on and won|passed by]. But {fhe} stopped. \"[Take hold of this branch|Hold on to me],\" {fhe} said, and pulled [with all {fhis} might|until {h} was free].",
     "{f} heard the cry and [turned aside at once|forgot all about the race]. \"[Do not worry|Stay calm],\" {fhe} called. {fHe} [laid a branch across the mud|found a long stick], and slowly {h} [climbed out|came free]."],
    [PARA + "{h} was [dirty from head to toe|covered in mud] and very quiet. \"[You could have won,|Why did you stop?]\" {he} said. \"[A friend is worth more than a race|Winning is nothing beside a friend],\" said {f}. So they [went on side by side|walked the last part together], and [crossed the line at the same time|reached the end as one].",
     PARA + "\"[I am sorry I laughed at you|Thank you],\" said {h}. \"[You are the better one of us two|I was foolish].\" Then {he} asked {f} to go first, and [everyone cheered|the whole crowd clapped] when {f} reached {goal}."],
    ["After that day, {h} [boasted no more|still ran fast, but talked less].",
     "[The loudest voice does not win the race|Quick feet are good, but a kind heart is better].",
     "And whenever {he} felt like boasting, {h} remembered the mud."],
]

ARCS["alarm"] = [
    ["{h} [liked to play tricks|was often bored], and [the best trick of all was to frighten {his} neighbours|{he} thought it was funny when others were scared].",
     "Nothing made {h} laugh so much as a good trick, even [an unkind|a mean] one."],
    [PARA + "{one}, {he} ran to {s1} and shouted, \"[Fire! Fire|The water is rising|A storm is coming]! [Run|Come quickly]!\" {f} the {fk} [dropped {fhis} basket|left {fhis} supper on the stove] and came running. The old {ek} came too, [quite out of breath|with a bucket in each arm]. But there was nothing at all. {h} [laughed and laughed|rolled on the ground with laughter].",
     PARA + "{one}, {h} cried out near {s1}, \"[Help! Help|Quick, help]! I have [fallen|hurt my foot]!\" {f}, {fa}, [ran all the way|came as fast as {fhe} could]. But {h} sat there without a scratch. \"[I only wanted to see how fast you run|It was just a joke],\" {he} said, and laughed."],
    ["\"[That was not funny|That was unkind],\" said {f}. \"[One day you will need us.|What will you do when it is true?]\" But the next day {h} [did it again|played the same trick], and the day after that as well.",
     "[The next day|Two days later] {he} did it again, and again {f} came. \"[This is the last time|I will not come again],\" said {f} angrily."],
    [PARA + "Then, one evening, {h} [slipped near {s2} and hurt {his} leg|fell into a deep hole near {s2}]. {He} could not [stand up|get out]. \"[Help|Please help]!\" {he} called. [At home, {f} heard the call|Everyone heard it]. \"[It is only another trick|There goes {h} again],\" said {f}, and [shut the window|went on with {fhis} work].",
     PARA + "At the end of the week, {h} [climbed too far|went out too late] and was [stuck near {s2}|trapped near {s2}] in the dark. {He} called until {his} voice was [thin|gone], but [nobody came|no door opened], for nobody believed {him}."],
    ["{h} lay there [a long time|half the night], cold and " + SAD + ". \"[This is my own fault|I have nobody to blame but myself],\" {he} said. At last the old {ek} [came by with a lamp|heard real tears in the voice] and [helped {him} home|carried {him} home].",
     "Only when it began to rain did {f} [start to worry|think again]. \"[What if it is true this time|Perhaps I should look],\" {fhe} said. {fHe} took a lamp, found {h}, and [brought {him} home|helped {him} out]. {h} was too ashamed to speak."],
    [PARA + "The next morning {h} went to every door and said, \"[I am sorry|I am sorry for my tricks]. I will [only call when I need you|not lie again].\" It took [many weeks|a long time], but {he} kept {his} word, and [bit by bit|slowly] they [trusted {him} again|believed {him} again].",
     PARA + "\"[I will never trick you again|I have learned my lesson],\" {h} promised. And {he} [kept the promise|meant it]. From then on, when {h} called, {his} friends came."],
    ["Trust is [slow to grow and quick to break|like a glass: easy to break and hard to mend].",
     "[Tell the truth when it is easy|Be honest in small things], and you will be believed when it is hard."],
]

ARCS["courage"] = [
    ["There was one thing {h} feared [above all|more than anything], and that was {fear}.",
     "{h} was afraid of {fear}. {He} [told nobody|was ashamed of it], but [{he} shook at the very thought|{f} the {fk} knew it].",
     "Everyone said that {h} was [brave|not afraid of anything]. Only {he} knew the truth: {he} was terribly afraid of {fear}."],
    ["{His} best friend was {f}, {fa}. \"[Everyone is afraid of something|There is no shame in being afraid],\" {f} always said.",
     "\"[One day you will be brave|Courage comes when you need it],\" said {f} the {fk}, {his} best friend. But {h} [did not believe it|only shook {his} head]."],
    [PARA + "{one}, {f} did not come to play. {h} waited near {s1} [all morning|until noon], but there was no sign of {fhim}. Then {he} heard [a faint cry|a voice]. \"Help! [I cannot get home|I am stuck]!\" It came from {fearplace}.",
     PARA + "{one}, {t} came running. \"[Come quickly|Something terrible has happened]!\" it cried. \"{f} is [stuck|in trouble], and nobody else is near!\" {h} [turned pale|felt {his} heart beat], for {f} was {feartrap}."],
    ["{h} began to [shake|tremble]. {He} thought of {fear}. {He} wanted to [run home|hide under {his} blanket]. But then {he} thought of {f}, all alone. \"[If I do not go, who will?|I am afraid, but I must go,]\" {he} said.",
     "\"[I can't|I am too afraid],\" {h} whispered. Then {he} heard {f} call again, and [something inside {him} grew strong|{his} feet began to move]. {He} [took a deep breath|closed {his} eyes for a moment], and set out."],
    ["[One step, and then another|Slowly, step by step], {he} went on. {He} [sang a small song to keep up {his} courage|counted every step]. {fearact} And there was {f}, [cold but unhurt|with tears on {fhis} face].",
     "{His} legs [shook|were like jelly], but they carried {him}. {fearact} At last {he} [reached {f}|found {f}] and held out {his} {hand}. \"[Take hold|Come], I am here,\" {he} said."],
    [PARA + "\"You came!\" cried {f}. \"[But you are afraid of {fear}|Were you not afraid]?\" \"[I was|Yes, very],\" said {h}. \"[But I was more afraid of losing you|I still am. But you needed me].\"",
     PARA + "They [came home together|went home side by side], and {f} told everyone [what {h} had done|the whole story]. \"[{h} is the bravest of us all|I have never seen such courage],\" said the old {ek}."],
    ["To be brave is not to have no fear; it is to [go on|do what is right] even so.",
     "{h} was still a little afraid of {fear}, but [{he} knew now that fear could be beaten|never again did it stop {him}].",
     "[Love makes the small ones brave|A brave heart may shake, but it does not turn back]."],
]

ARCS["winter"] = [
    ["It was late summer, and the days were [long and golden|warm and easy]. {h} [lay in the grass and sang|slept until noon and played until dark]. \"[There is plenty of time|Winter is far away],\" {he} said.",
     "{h} loved [to sing and dance|to lie in the sun], and did not love to work. \"[I will do it tomorrow|Tomorrow is soon enough],\" {he} always said."],
    [PARA + "{f} the {fk} was {his} neighbour. Every day {f} carried [wood and {treat}|{treat}] home, [mended the roof|filled every shelf], and [swept the floor|closed every crack in the wall].",
     PARA + "Next door lived {f}, {fa}. {fHe} was always busy. {fHe} [dried {treat} in the sun|gathered {treat}] and stacked wood against the wall."],
    ["\"[Why do you work so hard?|Come and play!]\" called {h}. \"[Winter is coming|The leaves are turning],\" said {f}. \"[You should get ready too|Your roof has a hole in it].\" {h} [only laughed|yawned and went back to sleep].",
     "{one}, {f} stopped near {s1} and wiped {fhis} brow. \"[Will you help me|Shall we work together]?\" {fhe} asked. \"[The cold will be here soon|Then we will both be ready].\" \"Not today,\" said {h}. \"[It is too hot to work|I am making up a song].\""],
    [PARA + "Then the cold came [in a single night|all at once]. Snow [covered the ground|fell for three days], and the wind blew [through the hole in the roof|under the door]. {h} had no wood and nothing to eat. {He} [shivered in a corner|pulled {his} blanket tight], and [nothing was left of {his} songs|the cold bit {his} nose].",
     PARA + "One morning {h} woke and could not open the door, so deep was the snow. {He} looked in the cupboard. There was [one old nut|nothing in it but a crumb]. {He} looked at the stove. It was [cold|as cold as ice]. \"[What have I done|If only I had listened],\" {he} said."],
    ["At last {he} {hwent} through the snow and knocked at {f}'s door. \"[I was foolish|You were right],\" {he} said in a small voice. \"[I am cold and hungry.|May I warm myself a little?]\" {f} looked at {him} for a [moment|long time]. \"[Come in|Come in to the fire],\" {fhe} said. \"[There is enough for two, if we are careful|But you must do your share].\"",
     "There was a knock. It was {f}, with a basket on {fhis} arm. \"[I saw no smoke from your roof|I thought you might be cold],\" {fhe} said. {h} [began to cry|did not know what to say]. \"[I laughed at you|I did not help you],\" {he} said, \"~and now you help me.\" \"[That is what neighbours are for|I like your songs],\" said {f}."],
    [PARA + "All winter {h} [swept the snow and carried the wood|cooked the soup and kept the fire], and in the evenings {he} sang. And when spring came, {he} was the first to [start work|mend the roof].",
     PARA + "So they spent the winter together, one with stories and the other with soup. The next summer, {h} [sang while {he} worked|gathered {treat} from the first day], and the work went [twice as fast|quickly]."],
    ["[Play has its time, and so has work|A little work today is a warm bed tomorrow].",
     "[Those who prepare in summer sleep well in winter|It is wise to mend the roof while the sun shines]."],
]

ARCS["quarrel"] = [
    ["{h} and {f} the {fk} were the best of friends. They [did everything together|shared every secret].",
     "{h} had a best friend, {fa} named {f}. [From morning to night they played together|You never saw one without the other]."],
    [PARA + "{one}, they found {oa} near {s1}. \"[I saw it first|It is mine]!\" cried {h}. \"[No, I did|No, it is mine],\" said {f}. They had never [quarrelled|shouted at each other] before, but now they [did|could not stop].",
     PARA + "But {one}, they saw {oa} lying near {s1}, and both of them wanted it. \"[I picked it up|Give it to me],\" said {h}. \"[But I saw it first|Why should you have it],\" said {f}. Soon both were [angry|shouting]."],
    ["{h} pulled on one side, and {f} pulled on the other. [Crack|Snap]! The {o} [broke in two|flew out of their hands and was gone]. They stared at each other. \"[Look what you have done|That was your fault]!\" they both said, and [each went home alone|turned their backs].",
     "\"[I will never play with you again|You are no friend of mine]!\" said {h}. \"[Good|Then go]!\" said {f}. {h} took the {o} home, [put it on the table|set it on a shelf], and sat down to look at it. But it [gave {him} no joy|was no fun alone]."],
    [PARA + "The next day was [long and dull|very long]. {h} [threw a ball, but nobody threw it back|told a joke, but nobody laughed]. {f} [sat alone near {s2}|walked about with {fhis} head down]. Both were " + SAD + ".",
     PARA + "Days went by. {h} missed the [laughter|stories] of {f}, and {f} missed the [songs|games] of {h}. But each one thought, \"[Let the other come first|I will not be the first to speak].\""],
    ["At last the old {ek} called them both. [\"What is the {o} worth?\" {ehe} asked. \"And what is a friend worth?\"|\"Which is worth more?\" {ehe} asked. \"The {o}, or a friend?\"] They looked at the ground. Neither could say a word.",
     "In the end {h} could bear it no longer. {He} {hwent} to {f}'s door. But before {he} could knock, the door opened, and there stood {f}. \"[I was just coming to see you|I am sorry],\" they both said, and then they both laughed."],
    [PARA + "\"[I am sorry|Forgive me], {f},\" said {h}. \"[You can have the {o}|I would rather have you than any {o}].\" \"[No, we will share it|Let it belong to both of us],\" said {f}. \"[You have it one day, and I the next|We can take turns].\"",
     PARA + "They [mended|made] the {o} together with [string and glue|patience and a little wax]. It was [not as fine as before|a bit crooked], but they liked it [better than ever|all the more]. They hung it near {s1}, where [everyone could enjoy it|both could see it]."],
    ["[A friend is worth more than any treasure|Things can be mended, and so can friendship].",
     "And they never quarrelled again, or at least [not for long|never past supper]."],
]

ARCS["practice"] = [
    ["More than anything, {h} wanted to {skill}.",
     "{h} had a dream. {He} wanted to learn to {skill}.",
     "{His} {giver} could {skill} better than anyone, and {h} wanted to do it too."],
    [PARA + "{one}, {he} [took {his} {tool}|got everything ready] and tried. It [went badly|was a disaster]. {His} first {work} was so [bad|strange] that {f} the {fk} [laughed out loud|covered {fhis} ears and eyes].",
     PARA + "{one}, {h} sat down near {s1} and tried for the first time. \"[This looks easy,|How hard can it be?]\" {he} thought. But {his} first {work} was [terrible|nothing to be proud of]. {f}, {fa}, [tried not to smile|looked the other way]."],
    ["\"[I will never learn it|I give up]!\" cried {h}, and threw the {tool} into the grass.",
     "{h} was [ashamed|angry]. \"[I am just not clever enough|Some can do it and some cannot],\" {he} said."],
    ["The old {ek} had been watching. [\"Do you see that stream?\" {ehe} asked. \"The water is soft, and yet it has cut through the rock. How did it do that?\"|\"Look at this smooth stone,\" {ehe} said. \"It was rough once, and the water made it round. How did it do that?\"] {h} thought about it. \"[A little every day|By never stopping],\" {he} said at last. \"[Just so|There you have it],\" said the old {ek}.",
     "\"[How many times did you try|How often have you tried]?\" asked the old {ek}. \"[Once|Three times],\" said {h}. The old {ek} laughed kindly. \"[I fell a hundred times before I could walk well|I tried for a whole year],\" {ehe} said. \"[Come back when you have tried a hundred times|Try again tomorrow, and the day after].\""],
    [PARA + "So {h} [tried again|picked up the {tool}]. {He} practised in the morning and {he} practised at night. On the [third|fifth] day it went a little better. [After a month|In a few weeks], even {f} [stopped laughing|began to listen and look].",
     PARA + "Every day {h} went to {s2}, where nobody could see {him}, and practised. Some days went well, and some days {he} wanted to [cry|stop]. But each {work} was a little better than the last."],
    [PARA + "When [the spring feast|the harvest feast|the summer fair] came, {h} [stood up before everyone|was asked to show what {he} could do]. {His} {hand} shook a little. Then {he} began. When {he} was done, it was very quiet. Then [everyone cheered|they all clapped and shouted].",
     PARA + "One evening {f} [came by|stopped near {s2}] and stared. \"[Did you do that|Who taught you that]?\" {fhe} asked. \"[It is wonderful|That is the best {work} of all]!\" {h} smiled. [\"I had a very strict teacher,\" {he} said. \"It was called patience.\"|\"Nobody,\" {he} said. \"I only tried again and again.\"]"],
    ["[Nobody is born a master|Every master was once a beginner].",
     "[A little every day goes a long way|Those who try once fail; those who try again learn].",
     "And when {f} asked, \"[Will you teach me|Can I learn it too]?\" {h} said, \"[Gladly|Of course]. But it may take a hundred tries.\""],
]

ARCS["medicine"] = [
    ["{h} lived with {his} {giver}, who [told the best stories in the world|had always taken good care of {him}].",
     "{h} loved {his} {giver} [very much|dearly], and every evening they sat together [by the fire|at the door]."],
    [PARA + "{one}, {his} {giver} [could not get up|lay in bed with a fever]. The old {ek} came and [looked grave|shook {ehis} head]. \"[There is a blue flower that grows near {s3}|Only a tea of moon herb can help, and it grows near {s3}],\" {ehe} said. \"[But the way is long|But it is far].\" \"[I will go|I will bring it],\" said {h} at once.",
     PARA + "{one}, {h} came home and found {his} {giver} [pale and weak|ill in bed]. \"[I need honey from the wild bees near {s3}|If I only had some moss from {s3}],\" {his} {giver} whispered. \"[But it is much too far for you|But nobody goes there].\" {h} [kissed {his} {giver}|put on {his} coat] and set out."],
    ["{he} {hwent} past {s1} and on until {he} met {f}, {fa}, who sat [crying|sighing] by the road. [\"I have a thorn in my foot,\" said {f}. {h} was in a hurry, but {he} pulled out the thorn even so.|\"I have eaten nothing all day,\" said {f}. {h} was in a hurry, but {he} stopped and shared {his} bread.] \"[Let me come with you|Then I will go with you],\" said {f}.",
     "On the way {he} met {f} the {fk}. \"[Where are you going in such a hurry|Why are you running], {h}?\" asked {f}. {h} told {fhim}. \"[Two go more safely than one|I know the way],\" said {f}. \"[I will come with you|Let us go together].\""],
    [PARA + "First they came to [a stream without a bridge|a deep ditch]. {f} [found a fallen branch|had an idea], and they [laid it across|made a bridge of it]. Then they came to [a wall of thorns|a great thicket]. {h} [saw a gap near the ground|dug a way under it], and they [crept through|got to the other side].",
     PARA + "Soon it grew dark, and [they could not see the path|the path split in two]. \"[Left or right|Which way]?\" asked {h}. \"[Listen|Let us wait and listen],\" said {f}. [Far off|On the left] they heard [water|bees], and so they knew the way. They went on, {hand} in {fhand}."],
    ["Near {s3} sat {t}, who guarded the place. \"[Why should I let you pass|What do you want here]?\" it asked. \"[It is not for me|I ask nothing for myself],\" said {h}. \"It is for my {giver}, who is ill.\" {T} looked at {him} for a long time. \"[Those who ask for others may take what they need|Then take it, and hurry],\" it said.",
     "And there, near {s3}, [in the moonlight|between two stones], they found [it|what they had come for]. There was very little of it. {h} took [only what {he} needed|just enough], and left the rest for [others|the next one who would need it]."],
    [PARA + "They ran all the way home. {h} made a hot tea, and {his} {giver} drank it [slowly|to the last drop]. The next morning {his} {giver} [sat up and smiled|asked for breakfast]. \"[What a brave child I have|You have saved me],\" said {his} {giver}. \"[I had help|I did not do it alone],\" said {h}, and [looked at {f}|gave {f} the best chair].",
     PARA + "By sunrise they were home again. [Three days later|Before the week was over] {his} {giver} was well, and told a new story by the fire. It was the story of {h} and {f}, [who went out into the night|and how they found the way]."],
    ["[Love makes a long road short|No road is too long for one who loves].",
     "[Help others on the way, and the way will help you|The one who stops to help gets there in the end]."],
]

ARCS["flatterer"] = [
    ["{h} was [a little vain|fond of praise], and [loved nothing so much as kind words|liked to hear how fine {he} was].",
     "If there was one thing {h} liked, it was [praise|being admired]."],
    [PARA + "{one}, {h} sat near {s1} with [a basket of {treat}|a bowl full of {treat}]. {f} the {fk} came by and saw it. {f} was [hungry and lazy|sly], and {fhe} had a plan.",
     PARA + "{one}, {h} had filled a [great|blue] bowl with {treat} and set it down near {s1}. The sweet smell reached the nose of {f}, {fa}, who was [as sly as could be|too lazy to bake]."],
    ["\"[Good day|Dear], {h}!\" said {f} sweetly. \"[How beautiful you look today|What a fine {hk} you are]! [I have heard that you dance better than anyone|They say that nobody can sing like you]. [Is it true|Would you show me]?\" {h} [blushed with pleasure|felt very proud].",
     "\"[Is that really you|Can it be], {h}?\" cried {f}. \"[I took you for a prince|How you shine]! [Would you climb up on that stone, so that everyone can see you?|Please turn around, so that I can see you from all sides!]\" {h} [could not resist|was only too glad to do it]."],
    ["{h} put down the {treat}, closed {his} eyes, and [began to sing|danced in a circle]. When {he} opened them again, {f} was gone, and the {treat} [were gone too|with {fhim}]. Only a few crumbs lay in the grass.",
     "{he} [stood as tall as {he} could|bowed to the left and to the right]. And while {he} did so, {f} [ate up everything|took it all and ran off]. \"[Thank you for the fine show|It was delicious]!\" {fhe} called from far away."],
    [PARA + "{h} went to the old {ek} and told {ehim} what had happened. \"[Did {f} ever praise you before|What did those fine words cost you]?\" asked the old {ek}. \"[Never|Everything I had],\" said {h}. \"[Then remember it|There you see],\" said the old {ek}. \"[True friends praise you when your bowl is empty|Some words are like honey on a hook].\"",
     PARA + "At first {h} was [angry with {f}|very angry]. Then {he} was angry with {himself}. \"[I wanted to believe it|I was fooled because I liked it],\" {he} said. The old {ek} nodded. \"[That is the first wise thing you have said today|Now you have learned something],\" {ehe} said."],
    ["Some weeks later {f} came again. \"[How clever you look|What lovely eyes you have], {h}!\" {fhe} said. {h} [held the bowl tight|smiled]. \"[Thank you|That is kind],\" {he} said. \"[If you are hungry, just ask|You may have some, but you must ask for it].\" {f} turned red. \"[May I have some, please?|I am sorry,]\" {fhe} said. And they [ate together|shared it].",
     "The next time {f} [praised {him}|came with sweet words], {h} laughed. \"[Fine words fill no bowl|You must be hungry again],\" {he} said. \"[Help me wash the dishes, and you can eat with me|Work with me, and we will share].\" And that is what they did."],
    ["[Beware of praise that comes at supper time|Sweet words are sometimes very dear].",
     "[Listen to what is said, and ask why it is said|A true friend is known by deeds, not by words]."],
]

ARCS["newcomer"] = [
    ["Nothing much ever [happened|changed] there, and {h} liked it that way.",
     "{h} knew everyone who lived there, and everyone knew {him}."],
    [PARA + "{one}, a stranger moved in near {s1}. It was {f}, {fa}. {fHe} [never said a word|wore an odd gray coat], and {fhe} [walked about at night with a lamp|carried a big locked box]. \"[I do not trust {fhim}|There is something strange about {fhim}],\" everyone whispered.",
     PARA + "{one}, someone new came to live near {s1}. {fHis} name was {f}, and {fhe} was {fa}. Nobody had ever seen [such a big hat|such strange boots]. \"[What does {fhe} want here|{fHe} must be up to something],\" said the neighbours."],
    ["{h} was [curious|a little afraid]. {He} [hid behind {s2} and watched|looked through the window]. {f} was [digging a hole|sitting all alone at the table]. \"[How very odd|What is {fhe} hiding],\" thought {h}, and {hwent} home [as fast as {he} could|without a word].",
     "When {f} said good morning, {h} [pretended not to hear|looked the other way]. When {f} [smiled|waved], {h} [walked faster|shut the door]. {f}'s smile grew smaller every day."],
    [PARA + "Then a great storm came. The wind [tore the roof from {h}'s home|blew down {h}'s door], and the rain poured in. {h} [ran out into the dark|stood in the cold and did not know where to go]. One window was [bright|still lit]. It was {f}'s window.",
     PARA + "One night {h} [fell and hurt {his} foot|got lost in the fog] near {s2}. {He} called, but nobody heard {him}. Then a light came swinging through the dark. It was {f} with {fhis} lamp."],
    ["\"[Come in|You are wet and cold. Come in],\" said {f}. There was [hot soup|warm milk] on the stove, and the big room was full of [flowers|little wooden toys|old books]. \"[I make these for the children|I was going to give them to you all],\" said {f} shyly, \"~[but nobody ever came|but nobody would talk to me].\"",
     "\"[Do not be afraid|Let me help you],\" said {f}. {fHe} [wrapped {h} in a blanket|gave {him} dry clothes] and made tea. \"[Every night I go out with my lamp, in case somebody is lost|I was lost once, and nobody helped me. So now I look out for others],\" {fhe} said. {h} felt {his} face grow hot."],
    [PARA + "\"[I am sorry|Please forgive me],\" said {h}. \"[I was wrong about you|I never even said good morning].\" \"[You can say it now|It is never too late],\" said {f}, and [they both laughed|poured another cup].",
     PARA + "The next day {h} took {f} by the {fhand} and led {fhim} from door to door. \"[This is my friend {f}|Meet {f}],\" {he} said [proudly|to everyone]. \"[{fHe} has the kindest heart of us all|You will like {fhim}].\""],
    ["[Look twice before you judge once|A stranger is often only a friend you have not met].",
     "And since then, whenever someone new arrives, {h} is the first to [knock at the door with a cake|say good morning]."],
]

ARCS["noise"] = [
    ["{h} slept well every night, [for it was a peaceful place|and nothing ever woke {him}].",
     "{h} was [not easily frightened|full of questions], and [wanted to know the reason for everything|always asked why]."],
    [PARA + "{one}, there was a strange sound. [Tap, tap, tap|Hoo, hoo|Creak, creak], it went. {h} [sat up|held {his} breath]. It came from {s1}.",
     PARA + "{one}, {h} heard something near {s1}. It was [a long, low moan|a scratching and a bumping]. [Then it was quiet|It stopped]. Then it [began|came] again."],
    ["{h} ran to {f} the {fk}. \"[There is a monster|I heard a ghost] near {s1}!\" {he} said. \"[I heard it too|Nonsense],\" said {f}, but {fhis} voice [shook|was not quite steady]. By noon everyone was talking of [a beast with ten teeth|a giant with a long beard]. By evening it had [a hundred teeth|two heads].",
     "In the morning {he} asked {f}, {fa}, \"Did you hear it?\" \"[Yes|I did],\" said {f}. \"[It must be a beast as big as a barn|It is surely a ghost]. [I am going to hide|Let us move away at once]!\" [Some began to pack|Everybody locked their doors]."],
    [PARA + "\"Has anybody [really |]seen it?\" asked {h}. Nobody had. \"[Then I will go and look|I would rather know than guess],\" {he} said. {f} [swallowed|thought about it]. \"[Then I will come too|Not alone],\" {fhe} said. They took a lamp and went out into the [dark|night].",
     PARA + "{h} [thought about it all day|could not sleep]. \"[It is worse not to know|I must find out],\" {he} said. \"[Will you come with me|Are you coming], {f}?\" {f} [did not want to|was afraid], but {fhe} [came|went along], and held on to {h}'s {hand}."],
    ["Nearer and nearer they came. [There it was again|The sound grew louder]. {h} lifted the lamp, and [there it was!|what did they see?] It was only [a loose board, knocking in the wind|an old bottle, in which the wind was blowing|a branch that rubbed against a stone].",
     "They [crept|went] on tiptoe to {s1}. {h}'s heart was beating [like a drum|fast]. Then the light fell on the terrible beast. It was {t}, [who had a cold and could not stop sneezing|trying to open a nut]. \"[Good evening,|Did I wake you?]\" it said. \"[I am so sorry|I beg your pardon].\""],
    [PARA + "{h} and {f} looked at each other, and then they laughed until [their sides hurt|they cried]. \"[So much fear for so little|And I almost moved away],\" said {f}.",
     PARA + "They told the others, and [at first nobody believed them|everybody was a little ashamed]. \"[And where is the great beast now|What about the beast]?\" asked the old {ek} [with a wink|and smiled]. Then everyone [had to laugh|went back to bed]."],
    ["[Fear makes small things big|In the dark, every mouse is a monster]. [It is best to take a lamp and look|Look first, and be afraid later].",
     "And that night, {h} slept [better than ever|very well indeed]."],
]

ARCS["seed"] = [
    ["{h} [had no garden, but {he} wished for one|wanted to grow something of {his} own].",
     "{h} could never wait for anything. {He} wanted everything [at once|right away]."],
    [PARA + "{one}, the old {ek} gave {him} a [small brown|tiny] seed. \"[Plant it well|Take good care of it],\" {ehe} said, \"~[and be patient|and wait].\" {h} planted it near {s1}, [gave it water|covered it with earth], and sat down to watch.",
     PARA + "{one}, {h} found a [strange|round] seed near {s1}. \"[What will it be?|I wonder what it will become.]\" {he} said. {He} made a hole with one {hand}, put the seed in, and [gave it a drink|patted the earth smooth]."],
    ["An hour went by, and nothing happened. A day went by, and [there was only earth|still nothing happened]. \"[Grow|Hurry up]!\" said {h}. {He} [sang to it|told it stories]. {He} [almost dug it up to see|wanted to dig it up]. \"[Do not do that|Leave it],\" said {f} the {fk}. \"[A seed works in secret|It needs its sleep].\"",
     "[Every morning|Three times a day] {he} ran to look. There was nothing. \"[It is dead|This seed is no good],\" {he} said to {f}, {fa}. \"[Wait a little longer|You must be patient],\" said {f}. \"[The best things take time|It does not know that you are in a hurry].\""],
    ["So {h} waited. In the [hot days|dry weeks] {he} carried water, and [in the cold nights|when the wind blew] {he} covered the place with leaves. {f} [pulled out the weeds|helped to carry the water].",
     "{h} [sighed|was not happy], but {he} [went on|did not give up]. {He} gave it water, kept the weeds away, and built [a little fence|a wall of stones] around it."],
    [PARA + "Then, one morning, there was [a tiny green point|something green] in the brown earth. \"[Look|It is alive]!\" {h} shouted so loudly that [everyone came running|the birds flew up]. It grew a leaf, and then another. [By summer|In time] it was as tall as {h}.",
     PARA + "And at last, after [a soft rain|many days], a small green leaf [looked out of the ground|opened in the sun]. {h} did not dare to breathe. It grew [day by day|higher and higher], and [one day there was a bud on it|soon there were buds]."],
    ["It was [an apple tree|a sunflower|a pear tree]! {f} and the old {ek} came to see it. \"[You have grown more than a plant|Something else has grown here],\" said the old {ek}. \"[What else|What do you mean]?\" asked {h}. \"[Patience|Your patience],\" said the old {ek}, and smiled.",
     "Now {h} often sat in its shade with {f}, and they [ate, talked and dreamed|told each other stories]. When somebody asked, \"[How did you make it so tall|What is your secret]?\" {h} said, \"[I only waited|Water, and time].\""],
    ["[Good things grow slowly|What grows slowly stands long].",
     "And in autumn {h} put a new seed into the {hand} of {t}, and said, \"[Plant it well, and be patient|Now it is your turn].\""],
]

ARCS["honest"] = [
    ["{h} was poor. {He} had [one coat and one spoon|only a thin blanket and an old pot], but {he} [never complained|sang while {he} worked].",
     "{h} did not have much, [but {he} was content|and often {he} went to bed hungry]."],
    [PARA + "{one}, {h} found {oa} near {s1}. It was [very fine|worth a great deal]. \"[With this I could buy bread for a year|Now I will never be hungry again],\" {he} thought, and {his} heart beat fast.",
     PARA + "{one}, something glittered near {s1}. It was {oa}, finer than anything {he} had ever [seen|held]. There was nobody [near|to be seen]."],
    ["\"[Keep it|Nobody will know],\" said {f} the {fk}, who had seen it. \"[Finders are keepers|The owner is surely rich]!\" {h} [turned it over and over|looked at it for a long time]. Then {he} shook {his} head. \"[I would know|Somebody is missing it],\" {he} said.",
     "\"[Nobody will know|Take it home],\" said {f} the {fk}, who stood nearby. For a moment {h} wanted to keep it. {He} put it in {his} pocket, but it felt [as heavy as a stone|too heavy]. \"[Somewhere, somebody is crying over this|It is not mine],\" {he} said."],
    [PARA + "So {he} {hwent} from door to door. \"[Have you lost {oa}|Does this belong to you]?\" {he} asked. {He} asked near {s2}, and {he} asked near {s3}. \"[No|Sadly not],\" they all said. \"[Why do you not keep it?|You are a fool to ask,]\" said some of them.",
     PARA + "{h} {hwent} all the way to {s2} and [called out to everyone|put up a sign]. Many came and said, \"[That is mine|I lost it]!\" But when {h} asked, \"[What does it look like|Which colour is it]?\" they [did not know|had no answer]."],
    ["In the evening {he} came to the old {ek}, who sat in front of the door and [cried|stared into the fire]. \"I have lost my {o},\" the old {ek} said. \"It is {oadj}, and it was [a present from my mother|all I had left of my youth].\" \"[Is this it|Here it is],\" said {h}, and held it out. The old {ek} [could not speak for joy|wept with joy].",
     "At last {he} met the old {ek}, who was looking for something in the grass. \"[What have you lost|What are you looking for]?\" asked {h}. \"My {oadj} {o},\" said the old {ek}. \"[I have had it all my life|My mother gave it to me].\" {h} smiled and put it into {ehis} lap."],
    [PARA + "\"[What can I give you for it|How can I thank you]?\" asked the old {ek}. \"[Nothing|I ask for nothing],\" said {h}. The old {ek} thought for a while. \"[I am old, and my house is big|I have a garden and nobody to help me],\" {ehe} said. \"[Come and live with me|Come and work with me], and you will never go hungry again.\"",
     PARA + "The next morning there was a basket at {h}'s door. In it were [bread, cheese and {treat}|{treat} and a warm new coat], and a note. \"[For an honest {hk}|To one who could have kept it],\" it said. And from then on a basket came every [week|month]."],
    ["When {f} heard of it, {fhe} [scratched {fhis} head|was silent for a long time]. [\"So it pays to be honest,\" {fhe} said.|\"I would have had only the {o},\" {fhe} said. \"You have a friend.\"]",
     "[An honest heart sleeps well|Honesty is a treasure that nobody can lose]."],
]

ARCS["together"] = [
    ["{h} was strong, or so {he} thought, and {he} [liked to do everything alone|never asked for help].",
     "{h} liked to work alone. \"[Others are only in the way|I need nobody],\" {he} used to say."],
    [PARA + "{one}, after a storm, a great tree lay across the path near {s1}. [Nobody could pass|The way to {s2} was closed]. \"[Leave it to me|I will move it],\" said {h}.",
     PARA + "{one}, a big stone rolled down and [blocked the spring near {s1}|stopped the stream near {s1}]. Soon [there was no more water|everyone was thirsty]. \"[I will push it away|I can do that],\" said {h}."],
    ["{h} pushed. {He} pulled. {He} [puffed and groaned|grew red in the face]. It did not move [at all|even a little]. \"[Shall I help you|May I help]?\" asked {f} the {fk}. \"No!\" said {h}. \"[I can do it alone|I am almost done].\"",
     "{f}, {fa}, came and watched. \"[It is too heavy for one|Let me push with you],\" {fhe} said. \"[You are too weak|Go away],\" said {h}. {He} tried [from the left and from the right|until evening], but [it was no use|nothing happened]."],
    [PARA + "In the end {h} sat down [in the grass|on the ground], quite worn out. {t} was passing by. It tried to carry a leaf, and could not. Then another came, and one more, and together they [carried it away|lifted it with ease]. {h} [watched them for a long time|opened {his} eyes wide].",
     PARA + "Then the old {ek} came by and gave {him} a [stick|twig]. \"Break it,\" {ehe} said. {h} broke it [easily|at once]. Then {ehe} gave {him} ten sticks, tied together. \"Now break these.\" {h} tried, and could not. \"[Do you see|Now you know],\" said the old {ek}."],
    ["{h} {hwent} to {f}. \"[I was wrong|I was foolish],\" {he} said. \"[Will you help me|Could you still help me]?\" \"[I was waiting for that|Of course],\" said {f}, and called all the others. They came from {s2} and from {s3}, big ones and small ones.",
     "\"{f}!\" called {h}. \"[I cannot do it alone|I need you]. [Please help me|Please come].\" And {f} came, and the old {ek}, and all the neighbours, [even the smallest of them|down to the last mouse]."],
    ["\"One, two, three!\" they called, and everyone pushed. It [creaked|shook]. It [moved|rolled]. And then, with a great crash, it [was out of the way|rolled down the hill]! They [cheered|shouted for joy], and {h} cheered the loudest.",
     "Some pushed, some pulled, and {t} [told them when|gave the beat]. [All at once|Slowly, very slowly] it began to move, and then [the way was free|it was done]. \"[We did it|Hurrah]!\" they all cried."],
    [PARA + "That evening they sat together [around a fire|near {s1}] and ate {treat}. \"[Who was the strongest|Who did it]?\" asked {f}. {h} laughed. \"[All of us|We did],\" {he} said.",
     PARA + "\"[I used to think that asking was weak|I thought I was strong],\" said {h} to {f}. \"[But it takes strength to ask|But together we are stronger].\""],
    ["[Many small hands move a great stone|What one cannot do, many can].",
     "And since that day, {h} [works with {his} friends, and it goes twice as fast.|begins every big task with the same words: \"Who will help me?\"]"],
]

# what is feared: (name, where the call comes from, "f was ...", what the hero does, flags that rule it out)
FEARS = [
    ("the dark", "the dark cave behind {s2}", "lost in the dark cave behind {s2}",
     "[It was so dark that {he} could not see {his} own {hand}.|Shadows moved along the walls, but they were only shadows.]", ""),
    ("thunder", "{s2}, just where the black clouds were", "out near {s2}, and a great storm was breaking",
     "[The sky roared and the ground shook, but {he} did not turn back.|Lightning flashed, and {he} jumped, but {he} went on.]", ""),
    ("deep water", "the deep water near {s2}", "stuck on a rock in the deep water near {s2}",
     "[The water was cold and came up to {his} chin.|The water pulled at {him}, but {he} held on to a branch.]", "w"),
    ("high places", "the high ledge above {s2}", "on the high ledge above {s2}, and could not get down",
     "[{He} did not look down, not even once.|The ground was far, far below.]", "f"),
]


# ---------------------------------------------------------------- telling

def add_character(prefix, name, is_girl, kind, slots):
    """Adds the slots of one named character: the hero's under no prefix, the friend's under "f"."""
    home, hand, going, food, _ = KINDS[kind]
    he, him, his = ("she", "her", "her") if is_girl else ("he", "him", "his")
    slots.update({prefix + "he": he, prefix + "him": him, prefix + "his": his, prefix + "hand": hand,
                  prefix + "himself": him + "self",
                  prefix + "He": he.capitalize(), prefix + "His": his.capitalize()})
    who = prefix or "h"
    slots.update({who: name, who + "k": kind, who + "home": home, who + "went": going, who + "food": food})


def article(rng, adjectives, noun):
    return "a " + pick(rng, adjectives) + " " + noun


def cast(rng, hero_turn, weather):
    """Draws everything that must stay the same through one story."""
    c = {"w": weather, "wsay": pick(rng, WEATHER[weather]), "tod": pick(rng, ["morning", "afternoon", "day", "evening"])}
    kinds = list(KINDS)
    kind = favour(rng, kinds, hero_turn)
    turn = kinds.index(kind)
    friend_kind = favour(rng, [k for k in kinds if k != kind], turn + 11)
    name, name_turn = None, turn * 5
    for prefix, of_kind in (("", kind), ("f", friend_kind)):
        is_girl = of_kind == "girl" or (of_kind != "boy" and rng.random() < 0.5)
        names = GIRLS if is_girl else BOYS
        name = favour(rng, [n for n in names if n != name], name_turn)
        name_turn = names.index(name) + 7
        add_character(prefix, name, is_girl, of_kind, c)
    c["n"] = pick(rng, [n for n in GIRLS + BOYS if n not in (c["h"], c["f"])])
    c["hadj"] = pick(rng, ADJECTIVES)
    c["fa"] = article(rng, [a for a in ADJECTIVES + ["friendly", "sleepy", "busy"] if a != c["hadj"]], friend_kind)
    elder = favour(rng, [k for k in ELDERS if k not in (kind, friend_kind)], turn)
    she = rng.random() < 0.5
    c.update(ek=elder, ehe="she" if she else "he", ehim="her" if she else "him", ehis="her" if she else "his")
    stranger = favour(rng, [k for k in STRANGERS if k not in (kind, friend_kind, elder)], turn * 3)
    c.update(t=article(rng, ["small", "tiny", "little", "young"], stranger), tt="the " + stranger, T="The " + stranger)
    where, spots = PLACES[favour(rng, list(PLACES), turn * 2)]
    c["pin"] = pick(rng, where)
    for slot in ("s1", "s2", "s3"):
        c[slot] = favour(rng, spots, 0)
        at = spots.index(c[slot])
        spots = spots[at + 1:] + spots[:at]
    adjective, item = favour(rng, ITEMS, turn)
    c.update(o=item, oadj=adjective, oa="a " + adjective + " " + item)
    c["treat"] = favour(rng, TREATS, turn)
    c["giver"] = favour(rng, GIVERS, turn)
    c["skill"], c["tool"], c["work"] = favour(rng, SKILLS, turn)
    c["goal"] = favour(rng, GOALS, turn)
    c["up"] = pick(rng, ["up", "ahead", "to the ground"])
    flags = KINDS[kind][-1]
    c["fear"], c["fearplace"], c["feartrap"], c["fearact"] = favour(
        rng, [fear[:4] for fear in FEARS if not fear[4] or fear[4] not in flags], turn)
    return c, turn


SLOT = re.compile(r"\{(\w+)\}")
CHOICE = re.compile(r"\[([^\[\]]*)\]")


def expand(rng, template, c):
    text = template
    while CHOICE.search(text) or SLOT.search(text):  # a slot's value may hold choices and slots of its own
        while CHOICE.search(text):
            text = CHOICE.sub(lambda m: pick(rng, m.group(1).split("|")), text)
        text = SLOT.sub(lambda m: c[m.group(1)], text)
    return text


QUESTION = re.compile(r'((?:^|[".!?]\s*)(?:Why|Who|Will|May|Shall|Where|Is|Are|Did|Could|Have you|Can|Would|Which|Does|'
                      r'Do(?! not)|What (?:is|does|did|if|are|do|else|will|can|have I|good is)|How (?:many|can|do)) '
                      r'[^.!?"]*),"')


def polish(text):
    """Articles before vowels, question marks, capitals at the start of sentences and of direct speech."""
    text = re.sub(r"\b([Aa]) (?=[aeiouAEIOU])", r"\1n ", text)
    out = []
    capital, quoted, just_closed = True, False, False
    for ch in text:
        if ch == '"':
            quoted = not quoted
            capital = quoted
            just_closed = not quoted
        elif ch in ".!?":
            capital = True
        elif ch == "~":  # speech that goes on: no capital
            capital = False
            continue
        elif not ch.isspace():
            # after a closing quote the template's own case stands: `"Come!" cried Pip`
            if capital and not just_closed:
                ch = ch.upper()
            capital = just_closed = False
        out.append(ch)
    return QUESTION.sub(r'\1?"', "".join(out))


def story(seed):
    """The fable of this number; the same number always gives the same text."""
    rng = random.Random(seed)
    timed = rng.random() < 0.3  # the opening already names the time of day
    weather = pick(rng, list(WEATHER))
    opening = pick(rng, TIMED_OPENINGS if timed else OPENINGS)
    hero_turn = list(WEATHER).index(weather) * 4 + 1 if timed else OPENINGS.index(opening) * 2
    c, turn = cast(rng, hero_turn, weather)
    arc = favour(rng, [a for a in ARCS if weather not in FROST or a not in FROSTLESS_ARCS], turn * 3)
    night = arc == "noise"
    if timed:
        c["one"] = "that night" if night else pick(rng, ["that very day", "that same day", "before the day was over"])
    else:
        c["tod"] = "night" if night else c["tod"]
        c["one"] = "one {w} {tod}"
    trait, *rest = [pick(rng, beat) for beat in ARCS[arc]]
    start = rng.random()
    if start < 0.05:  # no opening at all, for prompts that have none
        beats = [trait]
    else:
        beats = ([pick(rng, PRELUDES)] if start < 0.1 else []) + [opening]
        if "{f}" not in opening:  # "he" would be anybody's guess after two names
            if trait.startswith("{h} ") and rng.random() < 0.3:
                trait = trait.replace("{h}", "{he}", 1)
            if rng.random() < 0.4:
                beats.append(pick(rng, DETAILS))
        beats.append(trait)
    beats += rest
    if rng.random() < 0.15:
        beats.append(pick(rng, FAREWELLS))
    scene = "It was a {w} {tod}. {wsay} That {tod}" if not timed and rng.random() < 0.4 else None
    text = ""
    for beat in beats:
        if scene and beat.startswith(PARA + "{one}"):
            beat = beat.replace("{one}", scene, 1)
        piece = polish(expand(rng, beat, c).lstrip("\n"))
        text += (PARA if beat.startswith(PARA) else " " if text else "") + piece
    return text


if __name__ == "__main__":
    for number in range(int(sys.argv[1]) if len(sys.argv) > 1 else 3):
        print(story(number), end="\n\n----\n\n")
